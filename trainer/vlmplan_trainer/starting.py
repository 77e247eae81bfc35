"""What every run begins with: its ranks meet, and where it goes on, its newest whole checkpoint is found."""

import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from vlmplan.errors import InputError, UnavailableError
from vlmplan.launch.finished import finished_sentence, reported_steps
from vlmplan.plan import Plan
from vlmplan.run.training import best_problem
from vlmplan.units import counted
from vlmplan_trainer.engines.make import start_process_group
from vlmplan_trainer.options import Options
from vlmplan_trainer.phases import is_first, rank_here, say_phase
from vlmplan_trainer.saving.checkpoint import FoundCheckpoint, check_run, newest_checkpoint

UNIVERSAL_OPTIMIZERS = ("adamw", "torchao-adamw")
"""Whose states are two moments by those names, in tensors that can be cut (tried; those of 8 and 4 bits cannot)."""


def join_ranks(plan: Plan, *, is_needed: bool = False) -> None:
    """Wait for the other ranks; ``is_needed``: even where there are none, as a group of one.

    Raises UnavailableError where the ranks cannot meet.
    """
    if plan.hardware.num_gpus > 1:
        say_phase(f"waiting until all {plan.hardware.num_gpus} ranks are there")
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} (MASTER_ADDR, MASTER_PORT)"
    if plan.hardware.num_gpus > 1 and os.environ.get("MASTER_PORT") == "0":
        raise UnavailableError(f"the ranks cannot meet at {place}: a port from 1 to 65535 is needed")
    try:
        start_process_group(plan, is_needed=is_needed)
    except torch.distributed.DistError as error:
        reason = " ".join(str(error).split())
        raise UnavailableError(f"the ranks cannot meet at {place}: {reason}") from None


def leave_ranks() -> None:
    """End this rank's process groups, where it has any, while Python still runs.

    gloo's threads hold tensors of what they have sent. Where they release them while the interpreter shuts down, the
    process ends with SIGABRT, and a run that is done looks as if it had failed
    (https://github.com/pytorch/pytorch/pull/179291). Only for a run that has ended as it should: with ranks that are
    gone, ending a group may wait for them (https://github.com/pytorch/torchtitan/pull/1342).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def refuse_best_of_nothing(plan: Plan, options: Options) -> None:
    """Raise InputError for a plan whose result is that of the best evaluation, where nothing is evaluated."""
    problem = best_problem(options, plan.recipe)
    if problem is not None:
        raise InputError(problem)


def checkpoint_to_go_on_from(plan: Plan, options: Options, signature: Mapping[str, Any]) -> FoundCheckpoint:
    """The checkpoint to go on from, looked at before anything is loaded. Raises InputError for one of another run, or
    that this number of ranks cannot read."""
    say_phase("checking the checkpoints")
    found = newest_checkpoint(options.output_dir, rank_here(), plan.hardware.num_gpus)
    check_run(found, signature)
    refuse_unreadable_states(found, plan)
    if is_first():
        sys.stdout.writelines(f"note: {note}\n" for note in found.notes)
        sys.stdout.flush()
    return found


def refuse_unreadable_states(found: FoundCheckpoint, plan: Plan) -> None:
    """Raise InputError for a checkpoint that this number of ranks cannot read. DeepSpeed's universal form asks for both
    moments of Adam by their names (``extract_zero_shards`` in ``checkpoint/ds_to_universal.py`` 0.19.8)."""
    recipe, num_writers = plan.recipe, found.manifest.num_ranks
    if num_writers == plan.hardware.num_gpus:
        return
    if recipe.fsdp:
        why = "under --fsdp each reads its own part"
    elif recipe.zero_stage and recipe.optimizer.value not in UNIVERSAL_OPTIMIZERS:
        why = f"DeepSpeed hands the states of --optimizer {recipe.optimizer.value} to as many alone"
    else:
        return
    raise InputError(
        f"--resume: {found.place} was written by {counted(num_writers, 'GPU')}, and {why}, but the plan is for "
        f"{plan.hardware.num_gpus}; go on with as many"
    )


def refuse_finished(options: Options, found: FoundCheckpoint, *, num_steps: int) -> None:
    """Raise InputError where nothing is left to be done: the report of a run that has ended is its own."""
    step = found.manifest.position.step
    if step >= num_steps:
        refuse_reported(options, step)


def refuse_reported(options: Options, step: int) -> None:
    """Raise InputError for a run without a step left that has its report of ``step``."""
    if reported_steps(options.output_dir) == step:
        raise InputError(finished_sentence(options.output_dir, step))
