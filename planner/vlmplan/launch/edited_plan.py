"""A plan that was changed after it was planned: what it says to expect is of another run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vlmplan.errors import UnavailableError
from vlmplan.launch.plan_estimate import estimate_of
from vlmplan.models import described
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.notes import listed
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.rules import check, model_facts
from vlmplan.units import duration_text, gib_text


def as_it_stands(plan: Plan, path: Path, catalog_files: tuple[Path, ...]) -> tuple[Plan, list[str]]:
    """The plan of ``path`` with what its recipe and its samples take as they stand there, and a note where that is not
    what it says to expect. It is believed where its hardware is not known here, and of a model that no family knows,
    which was rehearsed when it was planned.

    Raises InputError for a recipe that cannot run.
    """
    if isinstance(described(plan.workload.model, plan.workload.model.config), ProbedModelFiles):
        return plan, []
    try:
        present = estimate_of(plan, catalog_files)
    except UnavailableError:
        return plan, []
    check(plan.recipe, cluster=present.cluster, model=model_facts(plan.workload.model))
    made = plan_from_estimate(present)
    cause = _calibration(plan, made, path)
    numbers = [*_numbers(plan, made), *(_seconds(plan, made) if cause else ())]
    differences = [f"{now} {what} in place of {was}" for what, was, now in numbers if was != now]
    if not differences:
        return plan, []
    cause = cause or f"{path} was changed after it was planned, or another vlmplan planned it"
    note = f"{cause}: as it stands it takes {listed(differences)}, to which the run is held"
    changed = replace(
        plan,
        hardware=replace(plan.hardware, calibrated_on=made.hardware.calibrated_on),
        expected=made.expected,
        num_params=made.num_params,
        num_trainable_params=made.num_trainable_params,
        environment=made.environment,
    )
    return changed, [note]


def _calibration(plan: Plan, made: Plan, path: Path) -> str | None:
    """Why the plan of ``path`` has other numbers where it was planned with another calibration than ``made``."""
    was, now = plan.hardware.calibrated_on, made.hardware.calibrated_on
    if was == now:
        return None
    if now is None:
        return f"{path} was planned with a calibration of {was}, which is not here"
    planned = "without it" if was is None else f"with that of {was}"
    return f"a calibration of {now} counts here, and {path} was planned {planned}"


def _seconds(*plans: Plan) -> Iterator[tuple[str, ...]]:
    """What a calibration changes beside bytes."""
    seconds = [plan.expected.step_seconds for plan in plans]
    yield "a step", *("an unknown time" if one is None else duration_text(one) for one in seconds)


def _numbers(*plans: Plan) -> Iterator[tuple[str, ...]]:
    """What the plans say beside each other, to the digits that people see."""
    yield "on each GPU", *(gib_text(plan.expected.peak_device_bytes) for plan in plans)
    yield "of host RAM", *(gib_text(plan.expected.host_bytes_per_node) for plan in plans)
    yield "steps", *(f"{plan.expected.num_steps:,}" for plan in plans)
    yield "trained parameters", *(f"{plan.num_trainable_params:,}" for plan in plans)
