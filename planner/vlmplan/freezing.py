"""What a frozen vision encoder saves: peft's all-linear and full fine-tuning train it, and few jobs need that."""

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil
from typing import NamedTuple

from vlmplan.architecture.model import Part
from vlmplan.errors import InputError
from vlmplan.estimation import Estimate, Estimator, sized_estimate, sized_recipes
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict, device_memory, expandable_device_bytes, fitting_bytes
from vlmplan.memory.overhead import process_group
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe
from vlmplan.rules import model_facts, objection

NOTICEABLE_FRACTION = 0.1
"""Of device bytes or seconds: less is not worth a line. A choice."""


class Freezing(NamedTuple):
    """One setup with its vision encoder trained, and frozen."""

    trained: Estimate
    frozen: Estimate

    @property
    def bytes_change(self) -> float:
        """Device bytes, as a fraction: -0.3 is 30% less."""
        return self.frozen.device.device_bytes / self.trained.device.device_bytes - 1

    @property
    def seconds_change(self) -> float | None:
        """Part by which freezing changes a step's seconds; None where a speed is not known."""
        return _change(self.trained.step_seconds, self.frozen.step_seconds)

    @property
    def is_noticeable(self) -> bool:
        return _are_noticeable(self.bytes_change, self.seconds_change)


def freezing(
    found: Estimate, *, chooses_sizes: bool = True, corrected: Callable[[Estimate], Estimate] | None = None
) -> Freezing | None:
    """The setup of ``found`` with its vision encoder frozen, where it is trained and that would change much.

    ``chooses_sizes``: ZeRO's sizes are chosen for what is trained then, as ``--freeze-vision`` has them.
    ``corrected`` makes of an estimate what ``found`` is.
    """
    if not found.recipe.train_vision or not found.trained_by_part.get(Part.VISION):
        return None
    cluster, recipe = found.cluster, found.recipe.with_changes(train_vision=False, full_vision=False)
    facts = model_facts(found.workload.model)
    if objection(recipe, cluster=cluster, model=facts, global_batch=None, given=()) is not None:
        return None
    try:
        estimator = Estimator(found.workload, recipe)
        timeline_of = cache(estimator.timeline)
        recipes = sized_recipes(estimator, recipe, cluster) if chooses_sizes else [recipe]
        sized = next((one for one in recipes[:-1] if _may_fit(one, timeline_of(one, cluster), cluster)), recipes[-1])
        timeline = timeline_of(sized, cluster)
    except InputError:  # nothing else is trained
        return None
    # Whatever the allocator does, it reserves what its tensors take: its replay costs more than all the rest.
    least_bytes = expandable_device_bytes(timeline.peak.total, cluster, process_group(sized, cluster.num_gpus))
    seconds = [_change(found.step_seconds, _step_seconds(estimator, one, cluster)) for one in recipes]
    if not _are_noticeable(least_bytes / found.device.device_bytes - 1, seconds[recipes.index(sized)]):
        return None
    is_by_bytes = corrected is None and not any(_are_noticeable(0, one) for one in seconds)
    most_bytes = ceil(found.device.device_bytes * (1 - NOTICEABLE_FRACTION))
    if is_by_bytes and not _shows_at_most(most_bytes, estimator, recipes, cluster, timeline_of):
        return None
    frozen = (
        sized_estimate(estimator, recipe, cluster, timeline_of)
        if chooses_sizes
        else estimator.estimate(recipe, cluster, timeline)
    )
    compared = Freezing(trained=found, frozen=frozen if corrected is None else corrected(frozen))
    return compared if compared.is_noticeable else None


def _shows_at_most(
    device_bytes: int,
    estimator: Estimator,
    recipes: Sequence[Recipe],
    cluster: Cluster,
    timeline_of: Callable[[Recipe, Cluster], Timeline],
) -> bool:
    """Whether that one of ``recipes`` which ``sized_estimate`` takes may show no more: the last, or one that fits."""
    *first, last = recipes
    fitting = min(device_bytes, fitting_bytes(cluster))
    asked = [*((one, fitting) for one in first), (last, device_bytes)]
    return any(estimator.shows_at_most(most, one, cluster, timeline_of(one, cluster)) for one, most in asked)


def _step_seconds(estimator: Estimator, recipe: Recipe, cluster: Cluster) -> float | None:
    timed = estimator.step_time(recipe, cluster)
    return None if timed is None else timed.expected.total


def _may_fit(recipe: Recipe, timeline: Timeline, cluster: Cluster) -> bool:
    """Whether its tensors do."""
    return device_memory(timeline.peak.total, cluster, process_group(recipe, cluster.num_gpus)).verdict is Verdict.FITS


def _change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after / before - 1


def _are_noticeable(bytes_change: float, seconds_change: float | None) -> bool:
    return min(bytes_change, seconds_change or 0) <= -NOTICEABLE_FRACTION
