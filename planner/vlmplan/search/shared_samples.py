"""Samples that no GPU has room for: a search once more with each shared by several GPUs."""

from dataclasses import replace

from vlmplan.recipe import Recipe
from vlmplan.rules import model_facts, objection
from vlmplan.search.answer import Recommendation, SearchQuery
from vlmplan.search.entries import rank_key
from vlmplan.search.recommendation import recommend

NOTE = (
    "no GPU has room for a sample by itself: --sequence-parallel {size} shares each among {size} GPUs, "
    "tried because nothing fits otherwise"
)


def recommend_or_share(query: SearchQuery) -> Recommendation:
    """The recommendation; where nothing fits and nobody has decided about sequence parallelism, the best of those with
    samples shared by 2, 4, 8 and more GPUs.

    Where a sample fits, sharing it buys nothing that more samples a step or accumulation do not: the same work, and
    all-to-alls besides. So it is tried only where nothing fits, and costs other searches nothing.
    """
    found = recommend(query)
    if found.plans or query.fixed.sequence_parallel is not None or query.made_for is not None:
        return found
    shared = [recommend(_with_shared(query, size)) for size in _sizes(query)]
    fitting = [one for one in shared if one.plans]
    if not fitting:
        return found
    best = min(fitting, key=_key)
    size = best.plans[0].estimate.recipe.sequence_parallel
    return replace(best, notes=(NOTE.format(size=size), *best.notes))


def _with_shared(query: SearchQuery, size: int) -> SearchQuery:
    return replace(query, fixed=replace(query.fixed, sequence_parallel=size))


def _sizes(query: SearchQuery) -> list[int]:
    """Powers of two that the model's attention and some of the machines can be shared by."""
    facts, most = model_facts(query.workload.model), max(one.cluster.num_gpus for one in query.candidates)
    sizes = [2**power for power in range(1, most.bit_length())]
    attention = query.fixed.recipe().attention
    recipes = {size: Recipe(zero_stage=3, sequence_parallel=size, attention=attention) for size in sizes}
    clusters = {candidate.cluster.num_gpus: candidate.cluster for candidate in query.candidates}.values()
    return [
        size
        for size, recipe in recipes.items()
        if any(
            objection(recipe, cluster=cluster, model=facts, global_batch=None, given=()) is None for cluster in clusters
        )
    ]


def _key(found: Recommendation) -> tuple[object, ...]:
    best = found.plans[0]
    estimate = best.estimate
    num_bytes = estimate.device.device_bytes
    return rank_key(found.objective, best.hours, best.usd, estimate.cluster.num_gpus, num_bytes)
