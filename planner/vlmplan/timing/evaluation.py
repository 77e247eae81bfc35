"""Seconds of evaluation between steps: forwards over its samples, batch by batch, and text that is generated.

What GRPO evaluates are answers that it generates and scores as in training, before the loss of them. Python around a
batch, and what moves of outputs that are kept for metrics, are in no second; every batch is taken to be full.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vlmplan.architecture.trace import Trace
from vlmplan.communication import CommunicationSeconds, communication_seconds
from vlmplan.engines.collectives import exchanges
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.timing.host import image_seconds, offload_seconds
from vlmplan.timing.overlap import shown_seconds
from vlmplan.timing.rates import Rates, Scenario, gpu_rates
from vlmplan.timing.rollout import (
    GenerationWork,
    RolloutWork,
    gathering_seconds,
    generation_seconds,
    rollout_seconds,
)
from vlmplan.timing.roofline import micro_batch_seconds_at
from vlmplan.workload import Workload

SCENARIO = Scenario.EXPECTED


class EvaluationWork(NamedTuple):
    """What one rank does for a batch of an evaluation: each of ``passes``, ``num_runs`` times, for which weights of
    ``whole_bytes`` are gathered; text that it generates with the same weights; the rollout of GRPO's answers."""

    passes: Sequence[Trace]
    num_runs: int = 1
    whole_bytes: int = 0
    generation: GenerationWork | None = None
    rollout: RolloutWork | None = None


class EvaluationTime(NamedTuple):
    """One evaluation: the batches of each rank, and the expected seconds of one."""

    num_batches: int
    batch_seconds: float

    @property
    def seconds(self) -> float:
        return self.num_batches * self.batch_seconds


def evaluation_time(
    table: ParameterTable, work: EvaluationWork, recipe: Recipe, cluster: Cluster, workload: Workload
) -> EvaluationTime | None:
    """The time of one evaluation of a recipe; None where a speed is not known, or how many samples there are."""
    assert recipe.evaluation is not None
    if recipe.evaluation.samples is None:
        return None
    seconds = batch_seconds(table, work, recipe, cluster, workload)
    if seconds is None:
        return None
    at_once = max(1, recipe.samples_evaluated_at_once(cluster.num_gpus))
    return EvaluationTime(num_batches=-(-recipe.evaluation.samples // at_once), batch_seconds=seconds)


def batch_seconds(
    table: ParameterTable, work: EvaluationWork, recipe: Recipe, cluster: Cluster, workload: Workload
) -> float | None:
    """Seconds of one batch of an evaluation; None where a speed is not known."""
    rates = gpu_rates(cluster.node.gpu, recipe, SCENARIO)
    gathered = gathering_seconds(work.whole_bytes, recipe, cluster)
    offloaded = _offloaded(table, recipe, cluster)
    rollout = None if work.rollout is None else rollout_seconds(work.rollout, recipe, cluster, SCENARIO)
    if rates is None or gathered is None or offloaded is None or (rollout is None and work.rollout is not None):
        return None
    seconds = sum(rollout or ())
    for one in work.passes:
        forward = _forward_seconds(one, gathered, rates, recipe, cluster)
        if forward is None:
            return None
        seconds += work.num_runs * (forward + offloaded)
    if work.generation is not None:
        seconds += _generating(work.generation, gathered, rates, offloaded)
    return seconds + _shown_images(workload, recipe, cluster, seconds)


def _forward_seconds(
    one: Trace, gathered: CommunicationSeconds, rates: Rates, recipe: Recipe, cluster: Cluster
) -> float | None:
    """Seconds of a forward with what it sends."""
    exchanged = communication_seconds(tuple(exchanges(one, 1, recipe.sequence_parallel)), cluster)
    if exchanged is None:
        return None
    forward, _, _ = micro_batch_seconds_at(rates, one, recipe).phases
    sent = gathered._replace(exchange=gathered.exchange + exchanged.exchange)
    return forward + shown_seconds(sent, forward, 0.0, SCENARIO)


def _generating(work: GenerationWork, gathered: CommunicationSeconds, rates: Rates, offloaded: float) -> float:
    """Seconds of generating text, with the weights that the forward over each token gathers."""
    seconds = generation_seconds(work, rates, SCENARIO)
    shown = shown_seconds(gathered, seconds / work.new_tokens, 0.0, SCENARIO)
    return seconds + work.new_tokens * (shown + offloaded)


def _offloaded(table: ParameterTable, recipe: Recipe, cluster: Cluster) -> float | None:
    """Seconds of bringing weights from the host for a forward: half of a micro batch's."""
    alone = recipe.with_changes(offload_optimizer=Offload.NONE, grad_accum=1)
    seconds = offload_seconds(table, alone, cluster, SCENARIO)
    return None if seconds is None else seconds / 2


def _shown_images(workload: Workload, recipe: Recipe, cluster: Cluster, computing: float) -> float:
    """Seconds of opening images that the GPU waits for: all, or what processes beside do not open meanwhile."""
    sized = recipe.with_changes(micro_batch=recipe.eval_batch, grad_accum=1)
    images = image_seconds(workload, sized, SCENARIO, gpu=cluster.node.gpu)
    if not workload.loader_workers:
        return images
    return max(0.0, images / workload.loader_workers - computing)
