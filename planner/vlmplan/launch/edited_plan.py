"""A plan that was changed after it was planned: what it says to expect is of another run."""

from collections.abc import Iterator
from dataclasses import replace
from math import isclose
from pathlib import Path

from vlmplan.cost import CostAssumptions, RunCost
from vlmplan.errors import UnavailableError
from vlmplan.estimation import Estimate
from vlmplan.hardware import Cluster, Offer, Pricing
from vlmplan.launch.plan_estimate import estimate_of
from vlmplan.memory.disk import DiskSpace
from vlmplan.models import described
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.notes import listed
from vlmplan.plan import Expectation, Plan, PlannedOffer, plan_from_estimate
from vlmplan.rules import check, model_facts
from vlmplan.search.answer import cost_of_run
from vlmplan.units import SECONDS_PER_HOUR, duration_text, gib_text, usd_text

SAME_PRICE = 1e-9
"""Part by which a price may differ from the one that is counted of the same numbers."""


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
    offer, usd = _price(plan, present)
    made = plan_from_estimate(present, usd=usd)
    cause = _calibration(plan, made, path)
    numbers = [*_numbers(plan, made), *(_seconds(plan, made) if cause else ())]
    differences = [f"{now} {what} in place of {was}" for what, was, now in numbers if was != now]
    if not differences:
        return plan, []
    differences += _other_price(plan, made)
    cause = cause or f"{path} was changed after it was planned, or another vlmplan planned it"
    note = f"{cause}: as it stands it takes {listed(differences)}, to which the run is held"
    changed = replace(
        plan,
        hardware=replace(plan.hardware, calibrated_on=made.hardware.calibrated_on),
        expected=made.expected,
        offer=offer,
        num_params=made.num_params,
        num_trainable_params=made.num_trainable_params,
        environment=made.environment,
    )
    return changed, [note]


def _price(plan: Plan, present: Estimate) -> tuple[PlannedOffer | None, float | None]:
    """The plan's offer and what the run costs on it as it stands.

    Where what the plan says of its price does not follow from its own numbers, it was planned with ``--download-gbit``
    or ``--spot-interruptions-per-day``, which a plan does not keep, or by another vlmplan: then no price is known.
    """
    offer, expected = plan.offer, plan.expected
    if offer is None or expected.usd is None:
        return offer, None
    was = _cost(offer, present.cluster, present.disk._replace(**_kept_disk(expected)), expected.run_seconds)
    now = _cost(offer, present.cluster, present.disk, present.run_seconds)
    if was is None or now is None or not isclose(was.usd, expected.usd, rel_tol=SAME_PRICE):
        return offer, None
    every = None if offer.save_every_steps is None else -(-present.num_steps // now.num_checkpoints)
    return replace(offer, save_every_steps=every), now.usd


def _kept_disk(expected: Expectation) -> dict[str, int]:
    return {"checkpoint_bytes": expected.checkpoint_bytes, "export_bytes": expected.export_bytes}


def _cost(offer: PlannedOffer, cluster: Cluster, disk: DiskSpace, seconds: float | None) -> RunCost | None:
    hours = None if seconds is None else seconds / SECONDS_PER_HOUR
    priced = Offer(
        gpu_id=cluster.node.gpu.id,
        num_gpus=cluster.node.num_gpus,
        provider=offer.provider,
        usd_per_hour=offer.usd_per_hour,
        pricing=Pricing(offer.pricing),
    )
    return cost_of_run(hours, priced, cluster, disk, CostAssumptions())


def _calibration(plan: Plan, made: Plan, path: Path) -> str | None:
    """Why the plan of ``path`` has other numbers where it was planned with another calibration than ``made``."""
    was, now = plan.hardware.calibrated_on, made.hardware.calibrated_on
    if was == now:
        return None
    if now is None:
        return f"{path} was planned with a calibration of {was}, which is not here"
    planned = "without it" if was is None else f"with that of {was}"
    return f"a calibration of {now} counts here, and {path} was planned {planned}"


def _other_price(plan: Plan, made: Plan) -> list[str]:
    """The price of the run beside the one that is planned, where there is one."""
    was, now = plan.expected.usd, made.expected.usd
    if was is None or was == now:
        return []
    return [f"{'an unknown price' if now is None else usd_text(now)} in place of {usd_text(was)}"]


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
