"""Plans of a search are looked at more closely before they are shown, and make way for others where they do not fit:
the winner by ``recommend --rehearse``, and all where only rehearsals tell of their model's activations."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlmplan.estimation import estimate, estimate_with_sizes
from vlmplan.hardware import Cluster, Gpu, cluster_text
from vlmplan.memory.device import Verdict
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.plan import Plan, plan_from_estimate
from vlmplan.search import RankedPlan, Recommendation, Rejection, SearchQuery
from vlmplan.search.long_samples import rank_of, rank_of_first, recommend_or_stretch
from vlmplan.search.pareto import front_of
from vlmplan.units import gib_text

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig
    from vlmplan.estimation import Estimate
    from vlmplan.memory.device import DeviceMemory
    from vlmplan.rehearsal import Comparison


MOST_SEARCHES, SMALLER_SHARE = 16, 0.9
"""Searches for cards with less memory, each with this share of that of the one before, down to a fifth. A choice: each
rehearses what it finds."""
MOST_SEARCHES_FOR_METHOD = 3
"""The same for a method whose plan is refused beside others that fit, the first as much smaller as it takes more. A
choice."""
Corrected = Callable[[Sequence["Estimate"]], Sequence["Estimate"]]
"""Estimates as rehearsals of their setups correct them."""
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


def with_corrected_plans(found: Recommendation, corrected: Corrected) -> Recommendation:
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


def searched_until_one_fits(
    query: SearchQuery, search: Callable[[SearchQuery], Recommendation], corrected: Corrected
) -> Recommendation:
    """What ``search`` finds, its plans ``corrected``. Where the best does not fit so, it is searched again on cards
    with less memory, and the best is taken of what fits then and of what was left; so are methods of which no plan is
    left beside it."""
    found = search(query)
    asked: list[tuple[Estimate, Estimate]] = []

    def noted(estimates: "Sequence[Estimate]") -> "Sequence[Estimate]":
        better = corrected(estimates)
        asked.extend(zip(estimates, better, strict=True))
        return better

    shown = with_corrected_plans(found, noted)
    refused = [pair for pair in asked if pair[1].verdict is not Verdict.FITS]
    best = shown
    if found.plans and not _is_first(found.plans[0], shown.plans):
        best = _best_with_less(query, search, corrected, found, shown)
    for estimated, better in refused if best.plans else ():
        if best.best_of(estimated.recipe.method) is None:
            best = _with_method(best, _method_anew(query, search, corrected, estimated, better))
    return best


def searched(query: SearchQuery) -> Recommendation:
    """What a search finds; where no family knows the model, with its plans as an estimate of each is, of rehearsed
    memory."""
    if not isinstance(query.workload.model, ProbedModelFiles):
        return recommend_or_stretch(query)
    from vlmplan.rehearsal.unknown import all_with_rehearsed_activations

    return searched_until_one_fits(query, recommend_or_stretch, all_with_rehearsed_activations)


def _method_anew(
    query: SearchQuery,
    search: Callable[[SearchQuery], Recommendation],
    corrected: Corrected,
    estimated: "Estimate",
    better: "Estimate",
) -> Recommendation | None:
    """A plan of the method and on the machine of one that was refused, which takes what ``better`` says."""
    machine = _machine(estimated.cluster)
    candidates = [one for one in query.candidates if _machine(one.cluster) == machine]
    asked = replace(query, candidates=candidates, fixed=replace(query.fixed, method=estimated.recipe.method))
    share = min(SMALLER_SHARE, estimated.device.device_bytes / better.device.device_bytes)
    for power in range(MOST_SEARCHES_FOR_METHOD):
        found = _on_whole_cards(search(_with_less_memory(asked, share * SMALLER_SHARE**power)), asked)
        fitting = with_corrected_plans(found, corrected)
        if fitting.plans or not found.plans:
            return fitting
    return None


def _with_method(best: Recommendation, more: Recommendation | None) -> Recommendation:
    """``best`` with the plans of ``more`` in their places, and what its front has of them."""
    if more is None or not more.plans:
        return best
    plans = sorted((*best.plans, *more.plans), key=lambda plan: rank_of(plan, best.objective))
    machines = {_machine(plan.estimate.cluster) for plan in plans}
    rejected = tuple(one for one in best.rejected if _machine(one.cluster) not in machines)
    scored = (*best.scored, *(point for point in more.scored if point not in best.scored))
    return replace(best, plans=tuple(plans), rejected=rejected, pareto=tuple(front_of(scored)), scored=scored)


def _best_with_less(
    query: SearchQuery,
    search: Callable[[SearchQuery], Recommendation],
    corrected: Corrected,
    found: Recommendation,
    shown: Recommendation,
) -> Recommendation:
    """The best of what fits on cards with less memory, and of what is ``shown`` of what was ``found``."""
    left = [shown] if shown.plans else []
    best = min([*left, *_with_less(query, search, corrected, left)], key=rank_of_first, default=shown)
    if best is shown:
        return shown
    machines = {_machine(plan.estimate.cluster) for plan in best.plans}
    rejected = tuple(one for one in shown.rejected if _machine(one.cluster) not in machines)
    refused = (note for note in shown.notes if note not in found.notes)
    return replace(best, rejected=rejected, notes=(*best.notes, *refused))


def _with_less(
    query: SearchQuery,
    search: Callable[[SearchQuery], Recommendation],
    corrected: Corrected,
    left: Sequence[Recommendation],
) -> Iterator[Recommendation]:
    """What fits of searches for cards with less and less memory, until the best plan of one does, or is no better than
    what is ``left``: cards with still less have no better ones."""
    for power in range(1, MOST_SEARCHES + 1):
        found = _on_whole_cards(search(_with_less_memory(query, SMALLER_SHARE**power)), query)
        if found.plans and any(rank_of_first(one) <= rank_of_first(found) for one in left):
            return
        fitting = with_corrected_plans(found, corrected)
        if fitting.plans:
            yield fitting
        if not found.plans or _is_first(found.plans[0], fitting.plans):
            return


def _is_first(plan: RankedPlan, plans: Sequence[RankedPlan]) -> bool:
    first = plans[0].estimate if plans else None
    return first is not None and (first.recipe, first.cluster) == (plan.estimate.recipe, plan.estimate.cluster)


def _machine(cluster: Cluster) -> tuple[str, int, int]:
    """What a cluster is, whatever its host."""
    return cluster.node.gpu.id, cluster.node.num_gpus, cluster.num_nodes


def _with_less_memory(query: SearchQuery, share: float) -> SearchQuery:
    """The question for cards with this share of the memory that a process can get."""

    def smaller(cluster: Cluster) -> Cluster:
        gpu = cluster.node.gpu
        return _with_gpu(cluster, replace(gpu, cuda_visible_bytes=int(gpu.usable_bytes * share)))

    return replace(query, candidates=[one._replace(cluster=smaller(one.cluster)) for one in query.candidates])


def _on_whole_cards(found: Recommendation, query: SearchQuery) -> Recommendation:
    """What was found for cards with less memory, as it is on the cards of ``query``."""
    gpus = {one.cluster.node.gpu.id: one.cluster.node.gpu for one in query.candidates}
    estimated = estimate_with_sizes if query.fixed.zero is None else estimate

    def whole(cluster: Cluster) -> Cluster:
        return _with_gpu(cluster, gpus[cluster.node.gpu.id])

    def planned_on(plan: RankedPlan) -> RankedPlan:
        known = plan.estimate
        return replace(plan, estimate=estimated(known.workload, known.recipe, whole(known.cluster)))

    return replace(
        found,
        plans=tuple(planned_on(plan) for plan in found.plans),
        rejected=tuple(one._replace(cluster=whole(one.cluster)) for one in found.rejected),
        pareto=tuple(point._replace(cluster=whole(point.cluster)) for point in found.pareto),
        scored=tuple(point._replace(cluster=whole(point.cluster)) for point in found.scored),
    )


def _with_gpu(cluster: Cluster, gpu: Gpu) -> Cluster:
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


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
