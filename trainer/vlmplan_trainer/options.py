"""The trainer's own command line: what data, where to, how often. How to train is in plan.json."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError
from vlmplan.plan import Plan, read_plan
from vlmplan.run.record import no_record, read_record, resumed
from vlmplan.run.training import DATA_SOURCES, MONITOR_PACKAGES, SCHEDULES, SPEECH_TASKS, TrainerOptions
from vlmplan_trainer.phases import is_first, rank_here


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TrainerOptions):
    """What a run was asked for, and by which plan."""

    plan: Path


def started(arguments: Sequence[str] | None = None) -> tuple[Options, Plan]:
    """The options and the plan of a process of the trainer, which gets the plan's environment.

    Raises VlmplanError for what is not allowed. torch is to be imported after it.
    """
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    plan = read_plan(options.plan)
    if rank_here() == 0 and plan.hardware.num_gpus == 1:  # alone, whatever a shell of another launcher says
        os.environ.update(RANK="0", LOCAL_RANK="0")
    for name, value in plan.environment.items():
        os.environ.setdefault(name, value)  # before torch is imported, which reads them once
    for module in ("torch.distributed", "transformers"):  # notes for those who write code on them
        warnings.filterwarnings("ignore", category=FutureWarning, module=module)
    return options, plan


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InputError(message)


def parse_options(arguments: Sequence[str]) -> Options:
    """The options of ``python -m vlmplan_trainer``; those of the run that is resumed where they are not given again.

    Raises InputError for what is not allowed, UnavailableError where nothing is known of the run.
    """
    given = vars(_parser().parse_args(list(arguments)))
    given["monitor"] = tuple(given.get("monitor", ()))
    return Options(**(_resumed(given) if "resume" in given else given))


def _parser() -> _Parser:
    parser = _Parser(
        prog="vlmplan_trainer",
        description="Train what plan.json says.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,  # the defaults are those of TrainerOptions
    )
    add = parser.add_argument
    add("--plan", type=Path, required=True, metavar="FILE", help="plan.json of vlmplan recommend or launch")
    add("--output-dir", type=Path, required=True, metavar="DIR", help="where checkpoints, metrics and the result go")
    add(
        "--train-data",
        type=Path,
        metavar="FILE",
        help="samples: JSONL, a JSON list, Parquet, Arrow, CSV, or a folder of them",
    )
    add(
        "--eval-data",
        type=Path,
        metavar="FILE",
        help="samples that are evaluated after every epoch, or when the plan says",
    )
    add("--image-folder", type=Path, metavar="DIR", help="where images are that the data names; else beside its file")
    add("--dummy-data", type=int, metavar="N", help="N synthetic samples instead of data")
    add("--rewards", type=Path, metavar="FILE", help="a Python file of yours with reward functions, for --task grpo")
    add("--beta", type=float, metavar="X", help="how much the reference counts in --task dpo, kto and grpo")
    add("--center-rewards-coefficient", type=float, metavar="X", help="draws the scores of --task reward to 0")
    add("--desirable-weight", type=float, metavar="X", help="weight of the loss of good answers in --task kto")
    add("--undesirable-weight", type=float, metavar="X", help="weight of the loss of bad answers in --task kto")
    add("--temperature", type=float, metavar="X", help="at which answers are drawn in --task grpo")
    add("--adapter", type=Path, metavar="DIR", help="start from the weights of this adapter, as peft saves them")
    add("--resume", action="store_true", help="go on from the newest whole checkpoint of --output-dir")
    add("--skip-bad-samples", action="store_true", help="leave out what cannot be used instead of stopping")
    add("--group-by-length", action="store_true", help="samples of about equal length in a micro batch: less padding")
    add("--language", metavar="NAME", help="Whisper: of what is said, as its tokenizer names it")
    add("--speech-task", choices=SPEECH_TASKS, help="Whisper: what its tokenizer writes before what is said")
    add("--random-weights", action="store_true", help="weights drawn anew, where there are none to load")
    add("--learning-rate", type=float, metavar="X", help="default: 1e-5 for full, 1e-4 for adapters")
    add("--weight-decay", type=float, metavar="X")
    add("--warmup-fraction", type=float, metavar="X", help="part of all steps")
    add("--schedule", choices=SCHEDULES, help="of the learning rate after warmup")
    add("--save-every", type=int, metavar="N", help="a checkpoint every N steps; one comes at the end anyway")
    add("--save-minutes", type=float, metavar="X", help="and every X minutes: 30, or 0 (never) with --save-every")
    add("--keep-last", type=int, metavar="N", help="checkpoints that are kept")
    add("--max-steps", type=int, metavar="N", help="stop there")
    add("--seed", type=int, metavar="N")
    add("--merge-adapters", action="store_true", help="also write the model with its adapters merged in")
    add("--measured-steps", type=int, metavar="N", help="first steps that the speed is without; CPU ranks measure them")
    add("--monitor", action="append", choices=tuple(MONITOR_PACKAGES), help="also write curves there; repeatable")
    return parser


def _resumed(given: dict[str, Any]) -> dict[str, Any]:
    """What was given, and what the run in its folder was given before."""
    folder, plan = given["output_dir"], given["plan"]
    record = read_record(folder)
    if record is None:
        if not any(name in given for name in DATA_SOURCES):
            raise no_record(folder)
        return given
    found = resumed(record, {name: value for name, value in given.items() if name != "plan"})
    if found.problems:
        raise InputError("; ".join(found.problems))
    if is_first():
        sys.stdout.writelines(f"note: {sentence}\n" for sentence in found.changes)
    return {item.name: getattr(found.options, item.name) for item in fields(found.options)} | {"plan": plan}
