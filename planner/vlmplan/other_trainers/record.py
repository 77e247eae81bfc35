"""What a configuration of another trainer says, and which setup of vlmplan it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from vlmplan.data_rules import DataRules
from vlmplan.deepspeed_config import DsConfig
from vlmplan.run.saving import Saving

Value = bool | int | float | str


class Unwritten(str):
    """In place of a value of a program: the expression that only running the program makes one."""

    __slots__ = ("advice",)
    advice: str
    """What else may say it, where that is known."""


class WholeNames(list[str]):
    """Names of modules that peft is given as a list: one alone is a name too, where text is a regular expression."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of the configuration, and its value as text."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key} {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """A configuration as its trainer takes it.

    ``options`` are the values of vlmplan's options that mean the same, by their names with underscores.
    ``gradient_clipping``, None where the file leaves it to others, and ``ds_config``, where there is one, belong to it.
    Every key of the file is in one of ``said`` (what it means is among the options), ``idle`` (no effect on memory or
    time) or in a sentence of ``notes``; ``defaults`` are what the trainer takes where the file is silent.
    """

    source: str
    trainer: str
    options: Mapping[str, Value] = field(hash=False)
    gradient_clipping: float | None
    ds_config: DsConfig | None
    said: tuple[Setting, ...]
    defaults: tuple[Setting, ...]
    idle: tuple[str, ...]
    notes: tuple[str, ...]
    data_rules: DataRules = field(default_factory=DataRules)
    """What becomes of samples before they are a micro batch, for ``--data``."""
    saving: Saving = field(default_factory=Saving)
    """When checkpoints are written, and how many stay."""
    output_dir: str = ""
    """Where; empty where nothing is said."""
    loader_workers: int = 0
    """Processes of each rank that open images while the GPU computes (``dataloader_num_workers``)."""
    grows_on_several: bool = False
    """Whether its launcher lets the allocator's segments grow for several processes and not for one, and nobody has
    said yet how many there are: ``expandable_segments`` is not among the options then."""
