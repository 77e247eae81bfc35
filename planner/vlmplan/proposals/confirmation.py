"""Plans of a search are looked at more closely before they are shown, and make way for others where they do not fit:
the winner by ``recommend --rehearse``, and all where only rehearsals tell of their model's activations."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlmplan.hardware import cluster_text
from vlmplan.memory.device import Verdict
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.search import RankedPlan, Recommendation, Rejection
from vlmplan.search.pareto import front_of
from vlmplan.units import gib_text

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig
    from vlmplan.estimation import Estimate
    from vlmplan.memory.device import DeviceMemory
    from vlmplan.rehearsal import Comparison


Refused = tuple[RankedPlan, str]
"""A plan that does not fit after all, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedRecommendation:
    """A recommendation whose first plan was rehearsed and fits; ``winner`` is None where none does."""

    found: Recommendation
    winner: "Comparison | None" = None


def planned(plan: RankedPlan, ds_config: "DsConfig | None") -> Plan:
    """The plan of a setup that was found."""
    return plan_from_estimate(plan.estimate, offer=plan.offer, base=ds_config, usd=plan.usd)


def confirmed(
    found: Recommendation, ds_config: "DsConfig | None", rehearsed: "Callable[[Plan, Estimate], Comparison]"
) -> ConfirmedRecommendation:
    """``found`` without the plans before the first that fits when it is ``rehearsed``."""
    refused: list[Refused] = []
    for place, plan in enumerate(found.plans):
        comparison = rehearsed(planned(plan, ds_config), plan.estimate)
        if comparison.verdict is not Verdict.DOES_NOT_FIT:
            return ConfirmedRecommendation(found=_without(found, refused, found.plans[place:]), winner=comparison)
        refused.append((plan, _reason(comparison.device, plan.estimate)))
    return ConfirmedRecommendation(found=_without(found, refused, ()))


def with_corrected_plans(
    found: Recommendation, corrected: "Callable[[Sequence[Estimate]], Sequence[Estimate]]"
) -> Recommendation:
    """``found`` with its plans as ``corrected`` has them, as an estimate of each is, without those that do not fit
    so."""
    refused: list[Refused] = []
    left: list[RankedPlan] = []
    notes: dict[str, None] = {}
    for plan, better in zip(found.plans, corrected([plan.estimate for plan in found.plans]), strict=True):
        if better.verdict is Verdict.FITS:
            left.append(replace(plan, estimate=better))
            notes.update(dict.fromkeys(better.workload.model.notes))
        else:
            refused.append((plan, _reason(better.device, plan.estimate)))
    changed = _without(found, refused, tuple(left))
    return replace(changed, notes=_renoted(changed, found.plans, notes)) if left else changed


def _renoted(found: Recommendation, before: Sequence[RankedPlan], notes: Collection[str]) -> tuple[str, ...]:
    """The notes of ``found`` with what plans say of their models now in place of what those ``before`` said."""
    old = {note for plan in before for note in plan.estimate.workload.model.notes}
    return (*notes, *(note for note in found.notes if note not in old and note not in notes))


def _without(found: Recommendation, refused: "list[Refused]", left: tuple[RankedPlan, ...]) -> Recommendation:
    """Only the plans that are ``left``; the others become notes, and rejections where their machine has none left.

    The front is that of what is left then; what it has in place of a refused plan may be known by its bounds alone.
    """
    clusters = [plan.estimate.cluster for plan in left]
    rejected = tuple(
        Rejection(cluster=plan.estimate.cluster, reason=reason)
        for plan, reason in refused
        if plan.estimate.cluster not in clusters
    )
    notes = tuple(_notes(refused))
    gone = [(plan.estimate.cluster, plan.estimate.recipe) for plan, _ in refused]
    scored = tuple(point for point in found.scored if (point.cluster, point.recipe) not in gone)
    return replace(
        found,
        plans=left,
        rejected=(*found.rejected, *rejected),
        notes=(*found.notes, *notes),
        pareto=tuple(front_of(scored)),
        scored=scored,
    )


def _notes(refused: "list[Refused]") -> Iterator[str]:
    for plan, reason in refused:
        method = plan.estimate.recipe.method.value
        yield f"{method} on {cluster_text(plan.estimate.cluster)} was ranked higher: {reason}"


def _reason(device: "DeviceMemory", estimated: "Estimate") -> str:
    return (
        f"rehearsed, it takes {gib_text(device.device_bytes)} of the {gib_text(device.usable_bytes)} usable "
        f"({gib_text(estimated.device.device_bytes)} as estimated)"
    )
