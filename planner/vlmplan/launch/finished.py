"""Whether a run has nothing left to do: its report says after how many steps it ended, and of what that was made."""

from pathlib import Path
from typing import Any

from vlmplan.errors import VlmplanError
from vlmplan.files.json_reader import read_json_object
from vlmplan.plan import Plan
from vlmplan.run.training import (
    ADAPTER_FOLDER,
    CHECKPOINTS,
    MANIFEST,
    MERGED_FOLDER,
    REPORT_FILE,
    TrainerOptions,
)
from vlmplan.units import counted, is_or_are

STEPS, LENGTH, STOPPED_EARLY = "steps", "length", "stopped_early"
"""Keys of report.json."""


def run_length(plan: Plan, options: TrainerOptions) -> dict[str, Any]:
    """All that decides how many steps a run has, but for its samples, which stay the same while it goes on."""
    evaluation = plan.recipe.evaluation
    stops = () if evaluation is None else ("early_stopping_patience", "early_stopping_threshold")
    return {
        **{name: getattr(evaluation, name) for name in stops if getattr(evaluation, name)},
        "epochs": plan.workload.epochs,
        "max_steps": options.max_steps,
        "num_gpus": plan.hardware.num_gpus,
        "micro_batch": plan.recipe.micro_batch,
        "grad_accum": plan.recipe.grad_accum,
    }


def reported_steps(folder: Path) -> int | None:
    """The steps after which the run in ``folder`` ended; None where it has no report that can be read."""
    steps = _report(folder).get(STEPS)
    return steps if isinstance(steps, int) else None


def finished_problem(plan: Plan, options: TrainerOptions) -> str | None:
    """Why there is nothing to go on with: the run ended as ``plan`` and ``options`` would end it again, or after more
    steps than they allow, and its last checkpoint is there. None where the trainer has to look, and where the run's
    adapter is to be merged."""
    folder, steps = options.output_dir, _steps_of_all(plan, options)
    if steps is not None and merges_only(plan, options):
        return None
    if steps is not None and _asks_for_merged(plan, options) and (folder / MERGED_FOLDER).is_dir():
        return (
            f"--resume: the run in {folder} is finished, and its adapter is merged into its model already, in "
            f"{folder / MERGED_FOLDER}; there is nothing left to do"
        )
    if steps is None:
        steps = _steps_beyond_limit(options)
    if steps is None or not (folder / CHECKPOINTS / f"step-{steps:08d}" / MANIFEST).is_file():
        return None
    return finished_sentence(folder, steps)


def _steps_beyond_limit(options: TrainerOptions) -> int | None:
    """The steps of a run that has ended after at least as many as ``--max-steps`` allows."""
    steps = reported_steps(options.output_dir) if options.resume else None
    return steps if steps is not None and options.max_steps is not None and options.max_steps <= steps else None


def result_problem(folder: Path) -> str | None:
    """Why a run without a checkpoint does not begin anew in ``folder``: it has ended, and would write over its result.
    None of one that was killed before its first checkpoint."""
    if reported_steps(folder) is None:
        return None
    return (
        f"--resume: the run in {folder} is finished and its checkpoints are gone, so it would begin anew and write "
        f"over its result; give another --output-dir, where --model or --adapter goes on from that result"
    )


def merges_only(plan: Plan, options: TrainerOptions) -> bool:
    """Whether a run that has ended is asked for the merged model, which it did not leave: nothing is trained for it,
    and neither checkpoints nor data are needed."""
    folder = options.output_dir
    is_there = (folder / ADAPTER_FOLDER).is_dir() and not (folder / MERGED_FOLDER).is_dir()
    return _asks_for_merged(plan, options) and is_there and _steps_of_all(plan, options) is not None


def _asks_for_merged(plan: Plan, options: TrainerOptions) -> bool:
    return options.merge_adapters and plan.recipe.trains_adapters


def _steps_of_all(plan: Plan, options: TrainerOptions) -> int | None:
    """The steps of a run that ended as ``plan`` and ``options`` would end it again; None for one that goes on."""
    if not options.resume or _report(options.output_dir).get(LENGTH) != run_length(plan, options):
        return None
    return reported_steps(options.output_dir)


def finished_sentence(folder: Path, steps: int) -> str:
    is_early = _report(folder).get(STOPPED_EARLY) is True
    done = (
        f"it stopped early, after {counted(steps, 'step')},"
        if is_early
        else f"its {counted(steps, 'step')} {is_or_are(steps)} done"
    )
    more = "a larger --early-stopping-patience" if is_early else "--max-steps or --epochs beyond that"
    return f"--resume: the run in {folder} is finished: {done} and {REPORT_FILE} is written; {more} goes on with it"


def _report(folder: Path) -> dict[str, Any]:
    try:
        return read_json_object(folder / REPORT_FILE)
    except VlmplanError:
        return {}
