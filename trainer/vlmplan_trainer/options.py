"""The trainer's own command line: what data, where to, how often. How to train is in plan.json."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmplan.errors import InputError

LEARNING_RATES = {"full": 1e-5, "lora": 1e-4, "qlora": 1e-4}
"""By method, where none is given: what the model cards of Qwen2-VL, LLaVA and Llama fine-tune with. A choice."""
DEFAULT_WARMUP_FRACTION = 0.03
DEFAULT_KEEP_LAST = 2
SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a run was asked for. ``learning_rate`` None: by method."""

    plan: Path
    output_dir: Path
    train_data: Path | None = None
    eval_data: Path | None = None
    dummy_data: int | None = None
    resume: bool = False
    skip_bad_samples: bool = False
    random_weights: bool = False
    learning_rate: float | None = None
    weight_decay: float = 0.0
    warmup_fraction: float = DEFAULT_WARMUP_FRACTION
    schedule: str = "cosine"
    save_every: int | None = None
    keep_last: int = DEFAULT_KEEP_LAST
    max_steps: int | None = None
    seed: int = 0
    merge_adapters: bool = False
    measured_steps: int = 3

    def __post_init__(self) -> None:
        sources = [name for name in ("train_data", "dummy_data") if getattr(self, name) is not None]
        if len(sources) != 1:
            given = " and ".join("--" + name.replace("_", "-") for name in sources) or "neither"
            raise InputError(f"one of --train-data and --dummy-data is needed; {given} is given")
        for name, least in (("dummy_data", 1), ("save_every", 1), ("keep_last", 1), ("max_steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; {least} or more is needed")
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"--{name.replace('_', '-')} is {value}; 0 or more is needed")
        if not 0 <= self.warmup_fraction <= 1:
            raise InputError(f"--warmup-fraction is {self.warmup_fraction}; a number from 0 to 1 is needed")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InputError(message)


def parse_options(arguments: Sequence[str]) -> Options:
    """The options of ``python -m vlmplan_trainer``. Raises InputError for what is not allowed."""
    parser = _Parser(prog="vlmplan_trainer", description="Train what plan.json says.", allow_abbrev=False)
    add = parser.add_argument
    add("--plan", type=Path, required=True, metavar="FILE", help="plan.json of vlmplan recommend or launch")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="where checkpoints, metrics and the result go")
    add("--train-data", type=Path, metavar="FILE", help="JSONL chats: messages or conversations")
    add("--eval-data", type=Path, metavar="FILE", help="chats that are looked at after every epoch")
    add("--dummy-data", type=int, metavar="N", help="N synthetic samples instead of data")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint of --output-dir")
    add("--skip-bad-samples", action="store_true", help="leave out lines that cannot be used instead of stopping")
    add("--random-weights", action="store_true", help="weights drawn anew, where there are none to load")
    add("--learning-rate", type=float, metavar="X", help="default: 1e-5 for full, 1e-4 for adapters")
    add("--weight-decay", type=float, default=0.0, metavar="X")
    add("--warmup-fraction", type=float, default=DEFAULT_WARMUP_FRACTION, metavar="X", help="part of all steps")
    add("--schedule", choices=SCHEDULES, default="cosine", help="of the learning rate after warmup")
    add("--save-every", type=int, metavar="N", help="a checkpoint every N steps; one comes at the end anyway")
    add("--keep-last", type=int, default=DEFAULT_KEEP_LAST, metavar="N", help="checkpoints that are kept")
    add("--max-steps", type=int, metavar="N", help="stop there")
    add("--seed", type=int, default=0, metavar="N")
    add("--merge-adapters", action="store_true", help="also write the model with its adapters merged in")
    add("--measured-steps", type=int, default=3, metavar="N", help="first steps whose memory is followed")
    return Options(**vars(parser.parse_args(list(arguments))))
