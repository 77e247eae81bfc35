"""Seconds per optimizer step, by what they are spent on, with a range.

A micro batch is forward, recomputation and backward of every section (``roofline``); a step is ``grad_accum`` of them,
the images that the host opens for them, gradient exchange and the optimizer.
"""

from dataclasses import dataclass

from vlmplan.architecture.trace import Trace
from vlmplan.communication import OVERLAP_FRACTION, exchange_seconds, traffic
from vlmplan.hardware import Cluster
from vlmplan.memory.parameters import ParameterTable
from vlmplan.recipe import Offload, Recipe
from vlmplan.timing.host import image_seconds, offload_seconds
from vlmplan.timing.rates import STEP_SECONDS, Outlook
from vlmplan.timing.roofline import Busy, PhaseSeconds, micro_batch_seconds
from vlmplan.timing.update import update_seconds
from vlmplan.workload import Workload

PARTS = ("forward", "recompute", "backward", "communication", "optimizer", "offload", "images", "fixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A step as expected, and the seconds of one where everything is at the slow or the fast end of its range.

    ``work`` is what forward, recomputation and backward keep the GPU busy with, in seconds a step; ``waiting`` what it
    waits for the host meanwhile.
    """

    expected: StepTime
    slow_seconds: float
    fast_seconds: float
    work: Busy
    waiting: float

    @property
    def bound(self) -> str:
        """What takes most of the step, in words."""
        step = self.expected
        parts = {
            "matrix products": self.work.products,
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
            "matrix_products": self.work.products,
            "attention": self.work.attention,
            "memory_bandwidth": self.work.memory,
            "waiting_for_host": self.waiting,
        }


def timed_step(
    table: ParameterTable, trace: Trace, recipe: Recipe, cluster: Cluster, workload: Workload
) -> TimedStep | None:
    """One optimizer step on ``cluster``; None if the speed of the GPU or of a link is not known."""
    found = {outlook: _step_at(table, trace, recipe, cluster, workload, outlook) for outlook in Outlook}
    expected, slow, fast = (found[outlook] for outlook in (Outlook.EXPECTED, Outlook.SLOW, Outlook.FAST))
    seconds = micro_batch_seconds(trace, cluster.node.gpu, recipe)
    if expected is None or slow is None or fast is None or seconds is None:
        return None
    work = sum(seconds.busy, Busy())
    n = recipe.grad_accum
    return TimedStep(
        expected=expected,
        slow_seconds=slow.total,
        fast_seconds=fast.total,
        work=Busy(products=n * work.products, attention=n * work.attention, memory=n * work.memory),
        waiting=n * seconds.waiting,
    )


def _step_at(
    table: ParameterTable, trace: Trace, recipe: Recipe, cluster: Cluster, workload: Workload, outlook: Outlook
) -> StepTime | None:
    seconds = micro_batch_seconds(trace, cluster.node.gpu, recipe, outlook)
    if seconds is None:
        return None
    return step_of(table, seconds.phases, trace, recipe, cluster, workload, outlook)


def step_of(
    table: ParameterTable,
    micro_batch: PhaseSeconds,
    trace: Trace,
    recipe: Recipe,
    cluster: Cluster,
    workload: Workload,
    outlook: Outlook = Outlook.EXPECTED,
) -> StepTime | None:
    """A step of ``grad_accum`` micro batches of (forward, recompute, backward) seconds, sending what ``trace`` says."""
    offload = offload_seconds(table, recipe, cluster, outlook)
    exchange = exchange_seconds(traffic(table, recipe, num_ranks=cluster.num_gpus, trace=trace), cluster)
    if offload is None or exchange is None:
        return None
    forward, recompute, backward = (recipe.grad_accum * seconds for seconds in micro_batch)
    hidden = min(exchange.total * OVERLAP_FRACTION, backward) if recipe.zero.overlap_comm else 0.0
    on_host = recipe.offload_optimizer is not Offload.NONE
    gpu, num_ranks = cluster.node.gpu, cluster.num_gpus
    return StepTime(
        forward=forward,
        recompute=recompute,
        backward=backward,
        communication=exchange.total - hidden,
        optimizer=0.0 if on_host else update_seconds(table, recipe, num_ranks=num_ranks, gpu=gpu, outlook=outlook),
        offload=offload,
        images=image_seconds(workload, recipe, outlook),
        fixed=STEP_SECONDS.at(outlook),
    )
