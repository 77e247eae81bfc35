"""Seconds per optimizer step, by what they are spent on, with a range.

A micro batch is forward, recomputation and backward of every section (``roofline``); a step is ``grad_accum`` of them,
the images that the host opens for them, communication and the optimizer; in GRPO also what makes its answers.
"""

from typing import NamedTuple

from vlmplan.architecture.trace import Trace
from vlmplan.communication import CommunicationSeconds, communication_seconds, step_collectives
from vlmplan.engines import overlapped_fraction
from vlmplan.engines.collectives import Collectives
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.timing.host import image_seconds, offload_seconds
from vlmplan.timing.overlap import shown_seconds
from vlmplan.timing.rates import STEP_SECONDS, Scenario, memory_bytes_per_second
from vlmplan.timing.rollout import RolloutSeconds, RolloutWork, rollout_seconds
from vlmplan.timing.roofline import BusySeconds, PhaseSeconds, micro_batch_seconds
from vlmplan.timing.update import update_seconds
from vlmplan.workload import Workload

PARTS = ("forward", "recompute", "backward", "communication", "optimizer", "offload", "images", "fixed")
OF_ROLLOUTS = ("generation", "scoring")
"""Parts that only GRPO has."""


class StepTime(NamedTuple):
    """Seconds of one optimizer step by what they are spent on; ``total`` is their sum.

    ``generation`` and ``scoring`` are those of GRPO's answers, None in other tasks.
    """

    forward: float
    recompute: float
    backward: float
    communication: float
    optimizer: float
    offload: float
    images: float = 0.0
    fixed: float = STEP_SECONDS.expected
    generation: float | None = None
    scoring: float | None = None

    @property
    def total(self) -> float:
        return sum(self.as_json().values())

    def as_json(self) -> dict[str, float]:
        parts = {name: getattr(self, name) for name in PARTS}
        return parts | {name: one for name in OF_ROLLOUTS if (one := getattr(self, name)) is not None}


HOST_LAUNCHES = "the host's launches of small operations"


def bound_of(step: StepTime, work: BusySeconds, waiting: float) -> str:
    """What takes most of a step whose micro batches are ``work`` and ``waiting``, in words."""
    parts = {
        "matrix products": work.matmuls,
        "attention": work.attention,
        "memory bandwidth": work.memory + step.optimizer,
        HOST_LAUNCHES: waiting + step.fixed,
        "communication between GPUs": step.communication,
        "offload to the host": step.offload,
        "opening images on the host": step.images,
        "generating answers": step.generation or 0.0,
        "scoring answers": step.scoring or 0.0,
    }
    return max(parts, key=lambda name: parts[name])


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

    slow_bound: str
    """What takes most of the step at the slow end, in words."""

    @property
    def bound(self) -> str:
        """What takes most of the step, in words."""
        return bound_of(self.expected, self.work, self.waiting)

    def as_json(self) -> dict[str, float]:
        """What the GPU's time in forward, recomputation and backward goes into."""
        return {
            "matrix_products": self.work.matmuls,
            "attention": self.work.attention,
            "memory_bandwidth": self.work.memory,
            "waiting_for_host": self.waiting,
        }


def timed_step(
    table: ParameterTable,
    trace: Trace,
    recipe: Recipe,
    cluster: Cluster,
    workload: Workload,
    rollout: RolloutWork | None = None,
) -> TimedStep | None:
    """One optimizer step on ``cluster``, with what GRPO does before; None if the speed of the GPU or of a link is not
    known."""
    communication = communication_seconds(
        step_collectives(table, recipe, num_ranks=cluster.num_gpus, trace=trace), cluster
    )
    n = recipe.grad_accum
    steps: dict[Scenario, StepTime] = {}
    busy: dict[Scenario, tuple[BusySeconds, float]] = {}
    for scenario in Scenario:
        seconds = micro_batch_seconds(trace, cluster.node.gpu, recipe, scenario)
        if seconds is None or communication is None:
            return None
        rest = _rest(table, recipe, cluster, workload, rollout, scenario)
        if rest is None:
            return None
        steps[scenario] = _step(seconds.phases, communication, rest, recipe, cluster, scenario)
        work = sum(seconds.busy, BusySeconds())
        all_work = BusySeconds(matmuls=n * work.matmuls, attention=n * work.attention, memory=n * work.memory)
        busy[scenario] = all_work, n * seconds.waiting
    work, waiting = busy[Scenario.EXPECTED]
    return TimedStep(
        expected=steps[Scenario.EXPECTED],
        slow_seconds=steps[Scenario.SLOW].total,
        fast_seconds=steps[Scenario.FAST].total,
        work=work,
        waiting=waiting,
        slow_bound=bound_of(steps[Scenario.SLOW], *busy[Scenario.SLOW]),
    )


class BesidesComputing(NamedTuple):
    """What a step of ``grad_accum`` micro batches takes besides computing them, whatever they are.

    ``overlapped_fraction``: part of the micro batches behind which communication hides.
    """

    communication: CommunicationSeconds
    overlapped_fraction: float
    grad_accum: int
    rest_seconds: float
    loading_seconds: float
    """What a step takes at the least."""

    def step_seconds(self, micro_batch: PhaseSeconds) -> float:
        """The expected total of a step with micro batches of (forward, recompute, backward) seconds."""
        n, overlapped = self.grad_accum, self.overlapped_fraction
        parts = _shown_seconds(micro_batch, self.communication, n, overlapped, Scenario.EXPECTED)
        forward, recompute, backward, shown = parts
        return max(self.loading_seconds, forward + recompute + backward + shown + self.rest_seconds)

    def with_collectives(self, collectives: tuple[Collectives, ...], cluster: Cluster) -> "BesidesComputing | None":
        """The same of a step with these ``collectives``, which nothing else here depends on; None if a link is not
        known."""
        communication = communication_seconds(collectives, cluster)
        return None if communication is None else self._replace(communication=communication)


def _shown_seconds(
    micro_batch: PhaseSeconds,
    communication: CommunicationSeconds,
    grad_accum: int,
    overlapped: float,
    scenario: Scenario,
) -> tuple[float, float, float, float]:
    """Seconds of all micro batches of a step: forward, recomputation, backward, and the communication that they do not
    hide."""
    forward, recompute, backward = [grad_accum * seconds for seconds in micro_batch]
    computing = overlapped * forward, overlapped * (recompute + backward)
    return forward, recompute, backward, shown_seconds(communication, *computing, scenario)


def besides_computing(
    table: ParameterTable,
    collectives: tuple[Collectives, ...],
    recipe: Recipe,
    cluster: Cluster,
    workload: Workload,
    rollout: RolloutWork | None = None,
) -> BesidesComputing | None:
    """What a step with these ``collectives`` takes apart from its micro batches; None if a speed is not known."""
    communication = communication_seconds(collectives, cluster)
    if communication is None or memory_bytes_per_second(cluster.node.gpu) is None:
        return None
    rest = _rest(table, recipe, cluster, workload, rollout, Scenario.EXPECTED)
    if rest is None:
        return None
    return BesidesComputing(
        communication=communication,
        overlapped_fraction=overlapped_fraction(recipe, cluster.num_gpus),
        grad_accum=recipe.grad_accum,
        rest_seconds=rest.total,
        loading_seconds=rest.loading,
    )


class _Rest(NamedTuple):
    """The seconds of a step that neither compute micro batches nor communicate."""

    optimizer: float
    offload: float
    images: float
    """Between micro batches, in the rank's own process."""
    fixed: float
    rollout: RolloutSeconds | None
    loading: float
    """Of images in processes beside it, which hides behind all else (torch's ``DataLoader`` with workers)."""

    @property
    def total(self) -> float:
        return self.optimizer + self.offload + self.images + self.fixed + sum(self.rollout or ())


def _step(
    micro_batch: PhaseSeconds,
    communication: CommunicationSeconds,
    rest: _Rest,
    recipe: Recipe,
    cluster: Cluster,
    scenario: Scenario,
) -> StepTime:
    overlapped = overlapped_fraction(recipe, cluster.num_gpus)
    parts = _shown_seconds(micro_batch, communication, recipe.grad_accum, overlapped, scenario)
    forward, recompute, backward, shown = parts
    waited = max(0.0, rest.loading - sum(parts) - rest.total)
    return StepTime(
        forward=forward,
        recompute=recompute,
        backward=backward,
        communication=shown,
        optimizer=rest.optimizer,
        offload=rest.offload,
        images=rest.images + waited,
        fixed=rest.fixed,
        generation=None if rest.rollout is None else rest.rollout.generation,
        scoring=None if rest.rollout is None else rest.rollout.scoring,
    )


def _rest(
    table: ParameterTable,
    recipe: Recipe,
    cluster: Cluster,
    workload: Workload,
    work: RolloutWork | None,
    scenario: Scenario,
) -> _Rest | None:
    """The seconds besides micro batches and communication; None if a bus or a speed is not known."""
    offload = offload_seconds(table, recipe, cluster, scenario)
    rollout = None if work is None else rollout_seconds(work, recipe, cluster, scenario)
    if offload is None or (rollout is None and work is not None):
        return None
    optimizer, gpu = 0.0, cluster.node.gpu
    if recipe.offload_optimizer is Offload.NONE:
        num_ranks = cluster.num_gpus
        optimizer = update_seconds(table, recipe, num_ranks=num_ranks, gpu=gpu, scenario=scenario)
    images = image_seconds(workload, recipe, scenario, gpu=gpu)
    fixed = STEP_SECONDS.at(scenario)
    if workload.loader_workers:
        return _Rest(optimizer, offload, 0.0, fixed, rollout, images / workload.loader_workers)
    return _Rest(optimizer, offload, images, fixed, rollout, 0.0)
