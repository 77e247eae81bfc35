"""What is written for another trainer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Cluster
from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.writing.limits import Limit
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.units import Choice
from vlmplan.workload import Workload

DS_CONFIG_FILE: Final = "ds_config.json"
"""What the keys call the DeepSpeed file, which lies beside theirs."""
ALLOCATOR_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""torch 2.13 reads it when the first CUDA memory is asked for (``c10/cuda/CUDAAllocatorConfig.h``)."""
EXPANDABLE: Final = "expandable_segments:True"


def placeholder(key: str) -> str:
    """Stands where only the user knows what belongs.

    >>> placeholder("dataset_name")
    'YOUR_DATASET_NAME'
    """
    return f"YOUR_{key.upper()}"


def no_keys(evaluation: Evaluation) -> Mapping[str, Any]:
    """A trainer that has none about what is evaluated."""
    del evaluation
    return {}


class Tool(Choice):
    """Another trainer, by the name of ``--for``."""

    TRL = "trl"
    TRANSFORMERS = "transformers"
    LLAMA_FACTORY = "llamafactory"
    MS_SWIFT = "ms-swift"
    AXOLOTL = "axolotl"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSetup:
    """What makes a trainer run a setup.

    ``settings`` are the trainer's own keys and their values in the order of ``file``, ``deepspeed`` the content of
    ``DS_CONFIG_FILE``, None without DeepSpeed. ``environment`` are variables that its process needs and no key sets.
    ``command`` starts it in the folder of the files; words with ``$`` hold variables of a shell. ``options`` are those
    of vlmplan for what no key says, so that the file and they together mean the setup. ``to_fill_in`` are keys of
    the file, or names of ``script``, whose value is only a placeholder, with what belongs there. ``reasons``: of keys
    that change what is learned and that nobody asked for, why they are there.
    """

    tool: Tool
    file: str
    settings: Mapping[str, Any]
    command: tuple[str, ...]
    deepspeed: JsonDict | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    options: Mapping[str, Value] = field(default_factory=dict[str, Value])
    to_fill_in: Mapping[str, str] = field(default_factory=dict[str, str])
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    script: str | None = None
    """The name of a program for what no key says, where the trainer has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTool:
    """What a tool can do, and how a setup is written for it.

    ``title``: as its reader calls it. ``written`` is asked for setups within ``limits`` alone; the DeepSpeed file and
    what no key says of the samples are added to it.
    """

    tool: Tool
    title: str
    limits: tuple[Limit, ...]
    """Everything that restricts what it can do, each with its source."""
    loss: LossKind
    written: Callable[[Recipe, Workload, Cluster], WrittenSetup]
    freezes_vision: bool = False
    """By default, and the projector with it."""
    limits_pixels: bool = False
    """A key says how large an image may be."""
    sizes_images: bool = False
    """A key says how large every image is."""
    attention: AttentionImplementation | None = None
    """What every setup is computed with unless the user says otherwise; None: what fits."""
    packed_rows: int | None = None
    """Rows of a micro batch, where it packs no other number."""
    evaluation: Callable[[Evaluation], Mapping[str, Any]] = no_keys
    """Keys of its own about what is evaluated."""
    stops_by_script: bool = False
    """What ends a run early stands in the program that is written, for which the trainer has no key."""
    evaluates_on_start: bool = False
    """Before the first step, whatever its file says."""
    evaluates_after_training: bool = False
    """Once more when training has ended, which is all there is where it evaluates at the end."""
    applies_liger_itself: bool = False
    """The Trainer that it builds on does not know of Liger's fused loss (``make_logits``)."""
