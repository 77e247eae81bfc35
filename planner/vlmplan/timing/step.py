"""Seconds per optimizer step, by what they are spent on, with a range.

A micro batch is forward, recomputation and backward of every section (``roofline``); a step is ``grad_accum`` of them,
the images that the host opens for them, communication and the optimizer.
"""

from typing import NamedTuple

from vlmplan.architecture.trace import Trace
from vlmplan.communication import OVERLAP_FRACTION, CommunicationSeconds, communication_seconds, step_collectives
from vlmplan.engines import overlapped_fraction
from vlmplan.engines.collectives import Collectives
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import Offload
from vlmplan.timing.host import image_seconds, offload_seconds
from vlmplan.timing.rates import STEP_SECONDS, RangedValue, Scenario, memory_bytes_per_second
from vlmplan.timing.roofline import BusySeconds, PhaseSeconds, micro_batch_seconds
from vlmplan.timing.update import update_seconds
from vlmplan.workload import Workload

OVERLAP = RangedValue(0.4, OVERLAP_FRACTION, 0.95)
"""Part of a collective that hides behind computation where an engine overlaps them. Assumed."""
LINK_RATE = RangedValue(0.7, 1.0, 1.1)
"""What links give of what ``communication`` expects of them. Assumed: others share the switch, or nobody does."""
PARTS = ("forward", "recompute", "backward", "communication", "optimizer", "offload", "images", "fixed")


class StepTime(NamedTuple):
    """Seconds of one optimizer step by what they are spent on; ``total`` is their sum."""

    forward: float
    recompute: float
    backward: float
    communication: float
    optimizer: float
    offload: float
    images: float = 0.0
    fixed: float = STEP_SECONDS.expected

    @property
    def total(self) -> float:
        return sum(getattr(self, name) for name in PARTS)

    def as_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in PARTS}


class TimedStep(NamedTuple):
    """A step as expected, and the seconds of one where everything is at the slow or the fast end of its range.

    ``work`` is what forward, recomputation and backward keep the GPU busy with, in seconds a step; ``waiting`` what it
    waits for the host meanwhile.
    """

    expected: StepTime
    slow_seconds: float
    fast_seconds: float
    work: BusySeconds
    waiting: float

    @property
    def bound(self) -> str:
        """What takes most of the step, in words."""
        step = self.expected
        parts = {
            "matrix products": self.work.matmuls,
            "attention": self.work.attention,
            "memory bandwidth": self.work.memory + step.optimizer,
            "the host's launches of small operations": self.waiting + step.fixed,
            "communication between GPUs": step.communication,
            "offload to the host": step.offload,
            "opening images on the host": step.images,
        }
        return max(parts, key=lambda name: parts[name])

    def as_json(self) -> dict[str, float]:
        """What the GPU's time in forward, recomputation and backward goes into."""
        return {
            "matrix_products": self.work.matmuls,
            "attention": self.work.attention,
            "memory_bandwidth": self.work.memory,
            "waiting_for_host": self.waiting,
        }


def timed_step(
    table: ParameterTable, trace: Trace, recipe: Recipe, cluster: Cluster, workload: Workload
) -> TimedStep | None:
    """One optimizer step on ``cluster``; None if the speed of the GPU or of a link is not known."""
    communication = communication_seconds(
        step_collectives(table, recipe, num_ranks=cluster.num_gpus, trace=trace), cluster
    )
    steps: dict[Scenario, StepTime] = {}
    work, waiting = BusySeconds(), 0.0
    for scenario in Scenario:
        seconds = micro_batch_seconds(trace, cluster.node.gpu, recipe, scenario)
        if seconds is None or communication is None:
            return None
        step = _step(table, seconds.phases, communication, recipe, cluster, workload, scenario)
        if step is None:
            return None
        steps[scenario] = step
        if scenario is Scenario.EXPECTED:
            work, waiting = sum(seconds.busy, BusySeconds()), seconds.waiting
    n = recipe.grad_accum
    return TimedStep(
        expected=steps[Scenario.EXPECTED],
        slow_seconds=steps[Scenario.SLOW].total,
        fast_seconds=steps[Scenario.FAST].total,
        work=BusySeconds(matmuls=n * work.matmuls, attention=n * work.attention, memory=n * work.memory),
        waiting=n * waiting,
    )


class BesidesComputing(NamedTuple):
    """What a step of ``grad_accum`` micro batches takes besides computing them, whatever they are.

    ``overlapped_fraction``: part of the micro batches behind which communication hides.
    """

    communication: CommunicationSeconds
    overlapped_fraction: float
    grad_accum: int
    rest_seconds: float

    def step_seconds(self, micro_batch: PhaseSeconds) -> float:
        """The expected total of a step with micro batches of (forward, recompute, backward) seconds."""
        forward, recompute, backward = (self.grad_accum * seconds for seconds in micro_batch)
        computing = self.overlapped_fraction * forward, self.overlapped_fraction * (recompute + backward)
        shown = _shown_seconds(self.communication, *computing, Scenario.EXPECTED)
        return forward + recompute + backward + shown + self.rest_seconds


def besides_computing(
    table: ParameterTable, collectives: tuple[Collectives, ...], recipe: Recipe, cluster: Cluster, workload: Workload
) -> BesidesComputing | None:
    """What a step with these ``collectives`` takes apart from its micro batches; None if a speed is not known."""
    communication = communication_seconds(collectives, cluster)
    if communication is None or memory_bytes_per_second(cluster.node.gpu) is None:
        return None
    rest = _rest(table, recipe, cluster, workload, Scenario.EXPECTED)
    if rest is None:
        return None
    return BesidesComputing(
        communication=communication,
        overlapped_fraction=overlapped_fraction(recipe, cluster.num_gpus),
        grad_accum=recipe.grad_accum,
        rest_seconds=sum(rest),
    )


def _step(
    table: ParameterTable,
    micro_batch: PhaseSeconds,
    communication: CommunicationSeconds,
    recipe: Recipe,
    cluster: Cluster,
    workload: Workload,
    scenario: Scenario,
) -> StepTime | None:
    rest = _rest(table, recipe, cluster, workload, scenario)
    if rest is None:
        return None
    optimizer, offload, images, fixed = rest
    forward, recompute, backward = (recipe.grad_accum * seconds for seconds in micro_batch)
    overlapped = overlapped_fraction(recipe, cluster.num_gpus)
    computing = overlapped * forward, overlapped * (recompute + backward)
    return StepTime(
        forward=forward,
        recompute=recompute,
        backward=backward,
        communication=_shown_seconds(communication, *computing, scenario),
        optimizer=optimizer,
        offload=offload,
        images=images,
        fixed=fixed,
    )


def _rest(
    table: ParameterTable, recipe: Recipe, cluster: Cluster, workload: Workload, scenario: Scenario
) -> tuple[float, float, float, float] | None:
    """(optimizer, offload, images, fixed): what neither computes micro batches nor communicates; None if a bus is not
    known."""
    offload = offload_seconds(table, recipe, cluster, scenario)
    if offload is None:
        return None
    optimizer, gpu = 0.0, cluster.node.gpu
    if recipe.offload_optimizer is Offload.NONE:
        num_ranks = cluster.num_gpus
        optimizer = update_seconds(table, recipe, num_ranks=num_ranks, gpu=gpu, scenario=scenario)
    return optimizer, offload, image_seconds(workload, recipe, scenario, gpu=gpu), STEP_SECONDS.at(scenario)


def _shown_seconds(communication: CommunicationSeconds, forward: float, backward: float, scenario: Scenario) -> float:
    """Communication that computation of the same phase does not hide: ``forward`` and ``backward`` are the seconds of
    it that run beside communication. Nothing hides what the update sends."""
    rate = LINK_RATE.at(scenario)
    fraction = OVERLAP.at(scenario) / rate
    hidden = min(fraction * communication.forward, forward) + min(fraction * communication.backward, backward)
    return communication.total / rate - hidden
