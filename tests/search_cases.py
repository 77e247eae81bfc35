"""Searches of small models on cards of any memory, for tests: what a search finds against what is there to find."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import islice, product
from math import inf
from typing import Any

from planned import decided, shipped_gpus, workload
from vlmplan.estimation import Estimate
from vlmplan.hardware import Cluster, Gpu, Node, Offer, Pricing
from vlmplan.recipe.choices import Method
from vlmplan.search import Compared, Limits, Objective, Recommendation, SearchQuery, recommend
from vlmplan.search.clusters import Candidate
from vlmplan.search.setup_records import BoundedSetup
from vlmplan.search.setups import SetupSpace
from vlmplan.workload import ModelFiles

TODAY = date(2026, 11, 21)


def card(gpu_id: str = "rtx-4090", **changes: Any) -> Gpu:
    """A card of the shipped catalog with other facts; ``memory_bytes`` is what torch can use of it."""
    if "memory_bytes" in changes:
        changes["cuda_visible_bytes"] = changes["memory_bytes"]
    return replace(shipped_gpus()[gpu_id], **changes)


def cluster(gpu: Gpu, num_gpus: int = 1, num_nodes: int = 1, **node: Any) -> Cluster:
    return Cluster(node=Node(gpu=gpu, num_gpus=num_gpus, **node), num_nodes=num_nodes)


def bounded_setups(where: SetupSpace, on: Cluster) -> list[BoundedSetup]:
    """The setups of every recipe that fit by their bounds, or may, whatever they take."""
    ways = (way for method in where.choices.methods for way in where.ways(on, method))
    return list(where.fastest(ways, on, lambda _: inf))


def offer(gpu: Gpu, usd_per_hour: float, num_gpus: int = 1, **changes: Any) -> Offer:
    known: dict[str, Any] = {"provider": "somebody", "pricing": Pricing.ON_DEMAND, "as_of": date(2026, 11, 1)}
    return Offer(gpu_id=gpu.id, num_gpus=num_gpus, usd_per_hour=usd_per_hour, **(known | changes))


def rented(gpu: Gpu, *offers: Offer) -> Candidate:
    return Candidate(cluster=Cluster(node=offers[0].node(gpu)), offers=offers)


def owned(*clusters: Cluster) -> list[Candidate]:
    return [Candidate(cluster=one) for one in clusters]


def space(
    alias: str | ModelFiles = "smollm2-135m",
    *,
    global_batch: int = 16,
    fixed: dict[str, Any] | None = None,
    **sample: Any,
) -> SetupSpace:
    asked = workload(alias, global_batch=global_batch, **sample)
    return SetupSpace(asked, decided(**(fixed or {})), global_batch)


def search(
    candidates: list[Candidate],
    alias: str | ModelFiles = "smollm2-135m",
    *,
    objective: Objective = Objective.COST,
    fixed: dict[str, Any] | None = None,
    limits: Any = None,
    compares: Compared = Compared.NEEDED,
    **sample: Any,
) -> Recommendation:
    return recommend(
        SearchQuery(
            workload=workload(alias, **sample),
            candidates=candidates,
            fixed=decided(**(fixed or {})),
            objective=objective,
            limits=limits or Limits(),
            today=TODAY,
            compares=compares,
        )
    )


def all_estimates(
    where: SetupSpace,
    on: Cluster,
    methods: tuple[Method, ...] | None = None,
    *,
    only_smallest: bool = False,
    every: int = 1,
) -> Iterator[Estimate]:
    """Every recipe of the space with every micro batch, or one in so many of them, computed exactly."""
    sizes = where.batch_sizes(on.num_gpus)[: 1 if only_smallest else None]
    recipes = (recipe for method in methods or where.choices.methods for recipe in where.recipes(on, method))
    for recipe, (micro_batch, grad_accum) in islice(product(recipes, sizes), None, None, every):
        sized = recipe.with_changes(micro_batch=micro_batch, grad_accum=grad_accum)
        estimator, _ = where.models.estimator(sized)
        yield estimator.estimate(sized, on)


@cache
def found_on_two_cards(objective: Objective = Objective.COST) -> Recommendation:
    """A search over one, two and four A100 and RTX 4090 at fixed prices."""
    gpus = (card("a100-sxm4-80gb"), 2.0), (card("rtx-4090"), 0.4)
    candidates = [rented(gpu, offer(gpu, usd * count, count)) for gpu, usd in gpus for count in (1, 2, 4)]
    return search(candidates, objective=objective, seq_len=256)
