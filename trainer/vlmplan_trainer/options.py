"""The trainer's own command line: what data, where to, how often. How to train is in plan.json."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlmplan.errors import InputError
from vlmplan.training import MONITOR_PACKAGES, SCHEDULES, TrainerOptions

LEARNING_RATES = {"full": 1e-5, "lora": 1e-4, "qlora": 1e-4}
"""By method, where none is given: what the model cards of Qwen2-VL, LLaVA and Llama fine-tune with. A choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TrainerOptions):
    """What a run was asked for, and by which plan."""

    plan: Path


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InputError(message)


def parse_options(arguments: Sequence[str]) -> Options:
    """The options of ``python -m vlmplan_trainer``. Raises InputError for what is not allowed."""
    parser = _Parser(
        prog="vlmplan_trainer",
        description="Train what plan.json says.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # the defaults are those of TrainerOptions
    )
    add = parser.add_argument
    add("--plan", type=Path, required=True, metavar="FILE", help="plan.json of vlmplan recommend or launch")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="where checkpoints, metrics and the result go")
    add("--train-data", type=Path, metavar="FILE", help="JSONL chats: messages or conversations")
    add("--eval-data", type=Path, metavar="FILE", help="chats that are looked at after every epoch")
    add("--dummy-data", type=int, metavar="N", help="N synthetic samples instead of data")
    add("--adapter", type=Path, metavar="DIR", help="start from the weights of this adapter, as peft saves them")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint of --output-dir")
    add("--skip-bad-samples", action="store_true", help="leave out lines that cannot be used instead of stopping")
    add("--group-by-length", action="store_true", help="samples of about equal length in a micro batch: less padding")
    add("--random-weights", action="store_true", help="weights drawn anew, where there are none to load")
    add("--learning-rate", type=float, metavar="X", help="default: 1e-5 for full, 1e-4 for adapters")
    add("--weight-decay", type=float, metavar="X")
    add("--warmup-fraction", type=float, metavar="X", help="part of all steps")
    add("--schedule", choices=SCHEDULES, help="of the learning rate after warmup")
    add("--save-every", type=int, metavar="N", help="a checkpoint every N steps; one comes at the end anyway")
    add("--keep-last", type=int, metavar="N", help="checkpoints that are kept")
    add("--max-steps", type=int, metavar="N", help="stop there")
    add("--seed", type=int, metavar="N")
    add("--merge-adapters", action="store_true", help="also write the model with its adapters merged in")
    add("--measured-steps", type=int, metavar="N", help="first steps whose memory is followed on CPU ranks")
    add("--monitor", action="append", choices=tuple(MONITOR_PACKAGES), help="also write curves there; repeatable")
    given = vars(parser.parse_args(list(arguments)))
    return Options(**given | {"monitor": tuple(given.get("monitor", ()))})
