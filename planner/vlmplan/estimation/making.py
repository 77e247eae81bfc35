"""The estimate of a recipe, as it is or with ZeRO's sizes chosen."""

from collections.abc import Callable, Iterable

from vlmplan.estimation.estimator import Estimator
from vlmplan.estimation.record import Estimate
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict, fitting_bytes
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe
from vlmplan.sizes import zero_settings
from vlmplan.workload import Workload


def estimate(workload: Workload, recipe: Recipe, cluster: Cluster) -> Estimate:
    """The estimate of ``recipe`` training ``workload`` on ``cluster``."""
    return Estimator(workload, recipe).estimate(recipe, cluster)


def estimate_with_sizes(workload: Workload, recipe: Recipe, cluster: Cluster) -> Estimate:
    """The estimate with ZeRO's bucket, prefetch, live and reuse sizes chosen: for speed, or for memory if that must
    be."""
    return sized_estimate(Estimator(workload, recipe), recipe, cluster)


def sized_estimate(
    estimator: Estimator,
    recipe: Recipe,
    cluster: Cluster,
    timeline_of: Callable[[Recipe, Cluster], Timeline] | None = None,
) -> Estimate:
    """``estimate_with_sizes`` by an estimator that is there already; ``timeline_of`` may know timelines."""
    timeline_of = timeline_of or estimator.timeline
    *first, last = sized_recipes(estimator, recipe, cluster)
    found = fitting_estimate(estimator, first, cluster, timeline_of)
    return found or estimator.estimate(last, cluster, timeline_of(last, cluster))


def fitting_estimate(
    estimator: Estimator,
    recipes: Iterable[Recipe],
    cluster: Cluster,
    timeline_of: Callable[[Recipe, Cluster], Timeline],
) -> Estimate | None:
    """The estimate of the first that fits; None where none does, of which nothing else is found out."""
    for recipe in recipes:
        timeline = timeline_of(recipe, cluster)
        if estimator.shows_at_most(fitting_bytes(cluster), recipe, cluster, timeline):
            found = estimator.estimate(recipe, cluster, timeline)
            if found.verdict is Verdict.FITS:
                return found
    return None


def sized_recipes(estimator: Estimator, recipe: Recipe, cluster: Cluster) -> list[Recipe]:
    """The recipe with sizes for speed, then with those for memory, which are taken where the first do not fit; as it is
    where there are no sizes to choose."""
    if not recipe.uses_deepspeed:
        return [recipe]
    sizes, table = estimator.sizes, estimator.table
    settings = [zero_settings(sizes, table, recipe, cluster, low_memory=low_memory) for low_memory in (False, True)]
    return [recipe.with_changes(zero=zero) for zero in settings]
