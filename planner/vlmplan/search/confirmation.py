"""``recommend --rehearse``: the winner is rehearsed before it is shown; one that does not fit makes way for others."""

from collections.abc import Callable, Iterator
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
    from vlmplan.rehearsal import Comparison


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
    refused: list[tuple[RankedPlan, Comparison]] = []
    for place, plan in enumerate(found.plans):
        comparison = rehearsed(planned(plan, ds_config), plan.estimate)
        if comparison.verdict is not Verdict.DOES_NOT_FIT:
            return ConfirmedRecommendation(found=_without(found, refused, found.plans[place:]), winner=comparison)
        refused.append((plan, comparison))
    return ConfirmedRecommendation(found=_without(found, refused, ()))


def _without(
    found: Recommendation, refused: "list[tuple[RankedPlan, Comparison]]", left: tuple[RankedPlan, ...]
) -> Recommendation:
    """Only the plans that are ``left``; the others become notes, and rejections where their machine has none left.

    The front is that of what is left then; what it has in place of a refused plan may be known by its bounds alone.
    """
    clusters = [plan.estimate.cluster for plan in left]
    rejected = tuple(
        Rejection(cluster=plan.estimate.cluster, reason=_reason(comparison))
        for plan, comparison in refused
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


def _notes(refused: "list[tuple[RankedPlan, Comparison]]") -> Iterator[str]:
    for plan, comparison in refused:
        method = plan.estimate.recipe.method.value
        yield f"{method} on {cluster_text(plan.estimate.cluster)} was ranked higher: {_reason(comparison)}"


def _reason(comparison: "Comparison") -> str:
    device, estimated = comparison.device, comparison.estimate.device
    return (
        f"rehearsed, it takes {gib_text(device.device_bytes)} of the {gib_text(device.usable_bytes)} usable "
        f"({gib_text(estimated.device_bytes)} as estimated)"
    )
