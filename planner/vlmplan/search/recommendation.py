"""A search from its question to its answer."""

from collections.abc import Sequence

from vlmplan.catalog.price_lists import Spread
from vlmplan.notes import Caveat, listed
from vlmplan.recipe.choices import Method
from vlmplan.search.answer import RankedPlan, Recommendation, SearchQuery
from vlmplan.search.clusters import taken_host_bytes
from vlmplan.search.exploration import Exploration
from vlmplan.search.prices import price_note, spread_beside
from vlmplan.search.ranking import Ranking
from vlmplan.search.shared_traces import RECENT, SharedTraces
from vlmplan.search.step_samples import step_notes
from vlmplan.units import gib_text


def recommend(query: SearchQuery) -> Recommendation:
    """The best plans among the candidates."""
    query.fixed.recipe()  # refuses what is wrong on every cluster
    with RECENT.of(query) as shared:
        return _searched(query, shared)


def possible_methods(query: SearchQuery) -> tuple[Method, ...]:
    """The methods that may have a plan, by the model states and the hosts alone: others have none, and none with what
    makes room for samples either, which takes nothing off states and puts more on hosts."""
    with RECENT.of(query) as shared:
        explored = Exploration(query, shared)
        methods = explored.space.choices.methods
        return tuple(one for one in methods if any(explored.may_hold(found, one) for found in query.candidates))


def may_have_plans(query: SearchQuery) -> bool:
    """Whether ``recommend`` may find a plan. Where it cannot, this takes a fraction of its time."""
    query.fixed.recipe()
    with RECENT.of(query) as shared:
        explored = Exploration(query, shared)
        return any(explored.may_fit(candidate) for candidate in query.candidates)


def _searched(query: SearchQuery, shared: SharedTraces) -> Recommendation:
    explored = Exploration(query, shared)
    for candidate in query.candidates:
        explored.consider(candidate)
    ranking = Ranking(query, explored)
    plans = ranking.best_plans()
    pareto, scored = ranking.front()
    of_winner = (*_notes(plans, query), *_host_notes(plans)) if plans else ()
    return Recommendation(
        workload=query.workload,
        objective=query.objective,
        plans=tuple(plans),
        rejected=tuple(ranking.rejections()),
        num_clusters=len(query.candidates),
        num_considered=explored.space.num_considered,
        as_of=query.today,
        notes=(*query.notes, *of_winner),
        pareto=pareto,
        scored=scored,
        spreads=_spreads(plans, query),
    )


def _host_notes(plans: Sequence[RankedPlan]) -> list[str]:
    """Sentences on the plans whose offers do not say what their hosts have, and on a first plan that asks more of a
    host than it would be taken to have."""
    node, needed = plans[0].estimate.cluster.node, plans[0].estimate.host.peak_bytes
    if node.host_ram_bytes is None and needed > (taken := taken_host_bytes(node)):
        return [
            Caveat(
                f"the first plan needs {gib_text(needed)} of host RAM, which is more than the {gib_text(taken)} that a "
                f"machine with such GPUs is taken to have; --host-ram says what yours has, and only what fits there is "
                f"planned then"
            )
        ]
    unknown = [plan.offer for plan in plans if plan.offer is not None and plan.offer.host_ram_bytes is None]
    if not unknown:
        return []
    providers = listed(list(dict.fromkeys(offer.provider for offer in unknown)))
    number = f"{len(unknown)} of the {len(plans)} plans" if len(unknown) < len(plans) else "any of these plans"
    return [
        f"host memory is not known for {number}, on {providers}: it is taken to be as much as the GPUs have together; "
        f"ask before you rent"
    ]


def _spreads(plans: Sequence[RankedPlan], query: SearchQuery) -> dict[str, Spread]:
    """The prices that a GPU has elsewhere, by GPU, where a plan's price is too old to stand for today's."""
    old = [plan.offer for plan in plans if plan.offer is not None and not plan.offer.is_current(query.today)]
    found = {offer.gpu_id: spread_beside(offer, query.offers) for offer in old}
    return {gpu_id: each for gpu_id, each in found.items() if each is not None}


def _notes(plans: Sequence[RankedPlan], query: SearchQuery) -> tuple[str, ...]:
    """What should be known of the plans' steps, and of the first plan's price and seconds."""
    winner, of_steps = plans[0], step_notes(plans, query.workload.global_batch)
    old_price = price_note(winner.offer, query.today, objective=query.objective, offers=query.offers)
    return (*of_steps, *([old_price] if old_price else []), *winner.estimate.cautions)
