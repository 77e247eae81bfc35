"""When another machine stops paying: seconds, speed and price of one recipe on 1 to 128 nodes.

Strong scaling keeps the samples of an optimizer step: more GPUs accumulate less, until each has one micro batch. Weak
scaling keeps what a GPU does in a step: more GPUs make the step's batch larger, and there are fewer steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from vlmplan.estimation import Estimate, Estimator, sized_estimate
from vlmplan.hardware import Cluster
from vlmplan.memory.device import Verdict
from vlmplan.recipe import Recipe
from vlmplan.units import SECONDS_PER_HOUR, divisors

NODE_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
PAYING_FRACTION = 0.5
"""Another node pays while it brings at least this part of the speed that it adds in GPUs. A choice: below it, more than
half of what is bought waits for the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The recipe on ``num_nodes``. ``efficiency`` is the speed of a GPU as a part of the best of the scan; ``usd`` is
    of training alone, at the price of one node by the hour. None: not known."""

    num_nodes: int
    num_gpus: int
    micro_batch: int
    grad_accum: int
    verdict: Verdict
    step_seconds: float
    communication_seconds: float
    run_seconds: float
    efficiency: float
    usd: float | None
    sequence_parallel: int = 1

    @property
    def samples_per_step(self) -> int:
        return self.num_gpus // self.sequence_parallel * self.micro_batch * self.grad_accum

    @property
    def samples_per_second(self) -> float:
        return self.samples_per_step / self.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Both scans, smallest first. ``strong`` ends where a GPU would have no sample left."""

    strong: tuple[ScalingPoint, ...]
    weak: tuple[ScalingPoint, ...]


def scaling(
    estimator: Estimator,
    recipe: Recipe,
    cluster: Cluster,
    *,
    usd_per_hour: float | None = None,
    node_counts: Sequence[int] = NODE_COUNTS,
    chooses_sizes: bool = False,
) -> Scaling | None:
    """``recipe`` on clusters of ``node_counts`` of the cluster's node; None if a speed is not known.

    ``chooses_sizes``: ZeRO's sizes are chosen for each of them, as an estimate of it has them.

    The samples of a step that strong scaling keeps are those of ``recipe`` on ``cluster``; ``usd_per_hour`` is of one
    node. Node counts that hpZ groups, copies of the model or ranks of a sample do not fit are left out.
    """
    samples, shares = recipe.samples_per_step(cluster.num_gpus), recipe.sequence_parallel
    clusters = [replace(cluster, num_nodes=count) for count in sorted(node_counts)]
    groups = (recipe.hpz, shares, recipe.dp_shard_size or 1)
    clusters = [one for one in clusters if not any(one.num_gpus % size for size in groups)]
    strong = [(_shared(recipe, samples, one), one) for one in clusters if one.num_gpus // shares <= samples]
    weak = [(recipe, one) for one in clusters]
    made = partial(sized_estimate, estimator) if chooses_sizes else estimator.estimate
    scans = [_points(made, setups, usd_per_hour) for setups in (strong, weak)]
    if scans[0] is None or scans[1] is None:
        return None
    return Scaling(strong=scans[0], weak=scans[1])


def _shared(recipe: Recipe, samples: int, cluster: Cluster) -> Recipe:
    """``recipe`` with batches that make ``samples`` a step on the cluster: exactly where that divides, else the least
    number above it."""
    per_gpu = -(-samples // (cluster.num_gpus // recipe.sequence_parallel))
    micro_batch = max(size for size in divisors(per_gpu) if size <= recipe.micro_batch)
    return recipe.with_changes(micro_batch=micro_batch, grad_accum=per_gpu // micro_batch)


def _points(
    made: Callable[[Recipe, Cluster], Estimate], setups: Sequence[tuple[Recipe, Cluster]], usd_per_hour: float | None
) -> tuple[ScalingPoint, ...] | None:
    points: list[ScalingPoint] = []
    for recipe, cluster in setups:
        found = made(recipe, cluster)
        if found.step_time is None or found.run_seconds is None:
            return None
        hours = found.run_seconds / SECONDS_PER_HOUR
        points.append(
            ScalingPoint(
                num_nodes=cluster.num_nodes,
                num_gpus=cluster.num_gpus,
                sequence_parallel=recipe.sequence_parallel,
                micro_batch=recipe.micro_batch,
                grad_accum=recipe.grad_accum,
                verdict=found.verdict,
                step_seconds=found.step_time.total,
                communication_seconds=found.step_time.communication,
                run_seconds=found.run_seconds,
                efficiency=1.0,
                usd=None if usd_per_hour is None else hours * usd_per_hour * cluster.num_nodes,
            )
        )
    best = max((point.samples_per_second / point.num_gpus for point in points), default=1.0)
    return tuple(replace(point, efficiency=point.samples_per_second / point.num_gpus / best) for point in points)


def nodes_paying(points: Sequence[ScalingPoint]) -> int | None:
    """The most nodes up to which each further one brings ``PAYING_FRACTION`` of its speed; None without points."""
    if not points:
        return None
    paying = points[0]
    for point in points[1:]:
        faster = point.samples_per_second / paying.samples_per_second - 1
        if faster < PAYING_FRACTION * (point.num_gpus / paying.num_gpus - 1):
            break
        paying = point
    return paying.num_nodes
