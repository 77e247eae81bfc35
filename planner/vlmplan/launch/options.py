"""What the user asks of the trainer beside the plan: data, places, how often. Names and defaults are the trainer's."""

import os
from dataclasses import dataclass, fields
from pathlib import Path

from vlmplan.errors import InputError

DATA_SOURCES = ("train_data", "dummy_data")
LEAST = {"dummy_data": 1, "save_every": 1, "keep_last": 1, "max_steps": 1, "measured_steps": 0, "seed": 0}
DEFAULT_KEEP_LAST = 2
"""Checkpoints that the trainer keeps where the user says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """The trainer's options; None or False is not passed on, so that its own default holds.

    Raises InputError for a value that the trainer would refuse.
    """

    output_dir: Path
    train_data: Path | None = None
    eval_data: Path | None = None
    dummy_data: int | None = None
    resume: bool = False
    skip_bad_samples: bool = False
    random_weights: bool = False
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup_fraction: float | None = None
    schedule: str | None = None
    save_every: int | None = None
    keep_last: int | None = None
    max_steps: int | None = None
    seed: int | None = None
    merge_adapters: bool = False
    measured_steps: int | None = None

    def __post_init__(self) -> None:
        given = [_flag(name) for name in DATA_SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none of them is given"
            raise InputError(f"one of {', '.join(map(_flag, DATA_SOURCES))} is needed; {found}")
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{_flag(name)} is {value}; {least} or more is needed")
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"{_flag(name)} is {value}; 0 or more is needed")
        if self.warmup_fraction is not None and not 0 <= self.warmup_fraction <= 1:
            raise InputError(f"--warmup-fraction is {self.warmup_fraction}; a number from 0 to 1 is needed")

    @property
    def num_kept(self) -> int:
        return DEFAULT_KEEP_LAST if self.keep_last is None else self.keep_last

    def arguments(self) -> list[str]:
        """The trainer's command line. Paths are absolute: other nodes start elsewhere."""
        words: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value is True:
                words.append(_flag(item.name))
            elif value is not None and value is not False:
                words += [_flag(item.name), os.path.abspath(value) if isinstance(value, Path) else str(value)]
        return words


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
