"""Bytes, seconds and disk of the recipes that a search looks at, each computed once.

Bytes come as bounds and seconds by secants, both between a few micro batches that are traced; the timeline and the
seconds of one micro batch are exact.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.communication import links_of, step_collectives
from vlmplan.engines import Engine, ModelStates
from vlmplan.engines.collectives import Collectives
from vlmplan.estimation import Estimator, has_upper_bound, with_other_models
from vlmplan.hardware import Cluster
from vlmplan.memory.device import budget_bytes
from vlmplan.memory.disk import DiskSpace
from vlmplan.memory.evaluation import with_evaluation
from vlmplan.memory.overhead import ProcessGroup, process_group, workspace_bytes
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe
from vlmplan.recipe.adapter_views import adapter_views
from vlmplan.search.combined_traces import Switches
from vlmplan.search.identity_cache import IdentityCache
from vlmplan.search.micro_batches import Capability, MicroBatches, States, TracedBatches
from vlmplan.search.recipe_bounds import BatchSize, RecipeBounds
from vlmplan.search.shared_traces import SharedTraces
from vlmplan.timing import (
    BesidesComputing,
    EvaluationTime,
    PhaseSeconds,
    RolloutWork,
    besides_computing,
    micro_batch_seconds,
)
from vlmplan.workload import Workload

NEVER_BOUNDED = 2**62
"""Above every GPU: what fits is for the timeline to say."""
EngineMicroBatches = Sequence[tuple[Recipe, MicroBatches]]
"""The recipes of an engine, each with its micro batches."""


class _Machines(NamedTuple):
    """What bounds depend on of a cluster."""

    num_ranks: int
    capability: Capability
    workspace_bytes: int
    is_on_cpu: bool

    @classmethod
    def of(cls, cluster: Cluster) -> "_Machines":
        gpu = cluster.node.gpu
        return cls(cluster.num_gpus, gpu.kernel_capability, workspace_bytes(gpu), gpu.is_cpu)


class _TimelineKey(NamedTuple):
    """What the timeline of a model's tensors depends on."""

    recipe: Recipe
    num_ranks: int
    backend: AttentionBackend
    is_on_cpu: bool
    room_bytes: int | None


class MemoizedEstimates:
    """What a workload takes under each recipe, on each cluster.

    ``switches`` are all ways to compute a micro batch that are tried, and ``largest`` the largest micro batch; recipes
    and clusters are kept, as what is known of them goes by the object.
    """

    def __init__(
        self,
        workload: Workload,
        switches: Sequence[Switches],
        largest: int,
        shared: SharedTraces,
        *,
        sequence_parallel: int = 1,
    ) -> None:
        """``sequence_parallel`` is that of all recipes that are asked about."""
        self.workload, self._sequence_parallel = workload, sequence_parallel
        self._switches, self._largest = switches, largest
        self._estimators, self._traced, self.speeds = shared.estimators, shared.traced, shared.speeds
        self._estimator_of = IdentityCache[Recipe, tuple[Estimator, States]](self._new_estimator)
        self._kernels = IdentityCache[Recipe, Capability](self._new_kernels)
        self._micro_batches = IdentityCache[Recipe, MicroBatches](self._new_micro_batches)
        self._of_engine = IdentityCache[Sequence[Recipe], EngineMicroBatches](self._new_engine_micro_batches)
        self._states = IdentityCache[Recipe, ModelStates](self._new_states)
        self._engines = IdentityCache[Recipe, Engine](self._new_engine)
        self._bounds = IdentityCache[Recipe, RecipeBounds](self._new_bounds)
        self._bounds_on: dict[tuple[int, int], tuple[Recipe, Cluster, RecipeBounds]] = {}
        self._machines = IdentityCache[Cluster, _Machines](_Machines.of)
        self._budgets = {
            group: IdentityCache[Cluster, int](partial(budget_bytes, group=group)) for group in ProcessGroup
        }
        self._batched = IdentityCache[Recipe, Recipe](self._new_with_batch)
        self._rollouts = IdentityCache[Recipe, RolloutWork | None](self._new_rollout)
        self._disk_of = IdentityCache[Recipe, DiskSpace](self._new_disk)
        self._alike = IdentityCache[Recipe, Recipe](self._first_alike)
        self._timelines: dict[_TimelineKey, Timeline] = {}
        self._besides: dict[Hashable, tuple[Cluster, BesidesComputing | None]] = {}
        self._evaluating: dict[Hashable, tuple[Cluster, EvaluationTime | None]] = {}
        self._sent: dict[Hashable, tuple[Collectives, ...]] = {}
        self._disks: dict[Hashable, DiskSpace] = {}
        self._firsts: dict[Hashable, Recipe] = {}
        self._unbatched: dict[int, Recipe] = {}

    def with_batch(self, recipe: Recipe, size: BatchSize) -> Recipe:
        """The recipe with this batch, one object."""
        return self._batched.get(self.any_batch(recipe), size)

    def _new_with_batch(self, recipe: Recipe, size: BatchSize) -> Recipe:
        micro_batch, grad_accum = size
        batched = recipe.with_changes(micro_batch=micro_batch, grad_accum=grad_accum)
        self._unbatched[id(batched)] = recipe
        return batched

    def any_batch(self, recipe: Recipe) -> Recipe:
        """The one object for the recipe with all its batches."""
        return self._unbatched.get(id(recipe), recipe)

    def estimator(self, recipe: Recipe) -> tuple[Estimator, States]:
        return self._estimator_of.get(recipe)

    def _new_estimator(self, recipe: Recipe) -> tuple[Estimator, States]:
        key = (
            *(recipe.method, recipe.precision, recipe.autocast, recipe.trained_dtype, recipe.frozen_dtype),
            *(recipe.copy_dtype, recipe.loaded_dtype, recipe.upcasts_frozen, recipe.use_double_quant),
            *(recipe.seen_adapter_dtype, recipe.gradient_units),
        )
        if key not in self._estimators:
            known = next((other.widest_head for other, _ in self._estimators.values()), None)
            estimator = Estimator(self.workload, recipe, widest_head=known)
            self._estimators[key] = (estimator, States(estimator))
        return self._estimators[key]

    def micro_batches(self, recipe: Recipe, capability: Capability) -> MicroBatches:
        """What micro batches of the recipe take at most."""
        return self._micro_batches.get(recipe, self._kernels.get(recipe, capability))

    def _new_kernels(self, recipe: Recipe, capability: Capability) -> Capability:
        """The capability that stands for all on which the recipe meets the same kernels."""
        return self.estimator(recipe)[0].backend(recipe, capability).compute_capability

    def engine_micro_batches(self, engine: Sequence[Recipe], capability: Capability) -> "EngineMicroBatches":
        """Each recipe of an engine, which is one object for all clusters, with its micro batches."""
        return self._of_engine.get(engine, capability)

    def _new_engine_micro_batches(self, engine: Sequence[Recipe], capability: Capability) -> "EngineMicroBatches":
        return [(recipe, self.micro_batches(recipe, capability)) for recipe in engine]

    def _new_micro_batches(self, recipe: Recipe, capability: Capability) -> MicroBatches:
        estimator, _ = self.estimator(recipe)
        backend = estimator.backend(recipe, capability)
        ends = self._switches[0], self._switches[-1]
        key = (id(estimator), backend, ends, recipe.keeps_linear_inputs, recipe.zero_stage == 3)
        key = (*key, recipe.prefetches_forward, adapter_views(recipe), self._largest)
        traced = self._traced.get(key)
        if traced is None:
            traced = self._traced[key] = TracedBatches(estimator, recipe, capability, self._largest, ends)
        return traced.micro_batches(Switches.of(recipe, has_others=self.workload.has_encoded_inputs))

    def states(self, recipe: Recipe, cluster: Cluster) -> ModelStates:
        """What a GPU holds throughout the step."""
        return self._states.get(self.any_batch(recipe), cluster.num_gpus, self._room_bytes(recipe, cluster))

    def _new_states(self, recipe: Recipe, num_ranks: int, room_bytes: int | None) -> ModelStates:
        estimator, states = self.estimator(recipe)
        return with_other_models(states.states(recipe, num_ranks, room_bytes), estimator.table, recipe, num_ranks)

    def _engine(self, recipe: Recipe, num_ranks: int, room_bytes: int | None) -> Engine:
        """The engine on the rank whose optimizer step takes most, for what it says of any micro batch."""
        return self._engines.get(self.any_batch(recipe), num_ranks, room_bytes)

    def _new_engine(self, recipe: Recipe, num_ranks: int, room_bytes: int | None) -> Engine:
        return self.estimator(recipe)[1].engine(recipe, num_ranks, room_bytes)

    def _room_bytes(self, recipe: Recipe, cluster: Cluster) -> int | None:
        return self.estimator(recipe)[0].room_bytes(recipe, cluster) if recipe.zero_stage in (1, 2) else None

    # -- bytes ---------------------------------------------------------------------------------------------------

    def bounds(self, recipe: Recipe, cluster: Cluster) -> "RecipeBounds":
        """What tensors take on a GPU of the cluster for the recipe with other batches, whatever its own."""
        key = (id(recipe), id(cluster))
        known = self._bounds_on.get(key)
        if known is None:
            known = self._bounds_on[key] = recipe, cluster, self._shared_bounds(self.any_batch(recipe), cluster)
        return known[2]

    def _shared_bounds(self, recipe: Recipe, cluster: Cluster) -> "RecipeBounds":
        """One object for all clusters that are alike in what bounds depend on."""
        on = self._machines.get(cluster)
        kernels = self._kernels.get(recipe, on.capability)
        room = self._room_bytes(recipe, cluster)
        return self._bounds.get(recipe, kernels, on.num_ranks, on.workspace_bytes, on.is_on_cpu, room)

    def _new_bounds(
        self,
        recipe: Recipe,
        capability: Capability,
        num_ranks: int,
        workspace_bytes: int,
        is_on_cpu: bool,
        room_bytes: int | None,
    ) -> "RecipeBounds":
        engine = self._engine(recipe, num_ranks, room_bytes)
        states = self._states.get(self.any_batch(recipe), num_ranks, room_bytes)
        estimator, _ = self.estimator(recipe)
        evaluated = estimator.evaluated(recipe, num_ranks=num_ranks, capability=capability, is_on_cpu=is_on_cpu)
        beside = with_evaluation((0, 0), engine, states, evaluated)
        if not has_upper_bound(recipe):
            beside = beside[0], NEVER_BOUNDED
        waiting = estimator.batch_bytes(recipe.with_changes(micro_batch=1)) if recipe.keeps_batches else 0
        batches = self.micro_batches(recipe, capability)
        return RecipeBounds(batches, engine, states, workspace_bytes, beside, waiting)

    def budget_bytes(self, cluster: Cluster, recipe: Recipe) -> int:
        """What tensors may take on a GPU of the cluster in a run of the recipe."""
        return self._budgets[process_group(recipe, cluster.num_gpus)].get(cluster)

    def timeline(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """The timeline of the setup, made once for all clusters of as many GPUs that meet the same kernels, whatever
        the object that says the recipe."""
        gpu = cluster.node.gpu
        estimator, _ = self.estimator(recipe)
        changes: dict[str, Any] = {"zero": recipe.zero.read_by(recipe.zero_stage)}
        if recipe.autocast is None:  # which keeps casts by what is asked for
            changes["vision_activation_checkpointing"] = estimator.checkpoints_others(recipe)
        key = _TimelineKey(
            recipe=recipe.with_changes(**changes),
            num_ranks=cluster.num_gpus,
            backend=estimator.backend(recipe, gpu.kernel_capability),
            is_on_cpu=gpu.is_cpu,
            room_bytes=self._room_bytes(recipe, cluster),
        )
        if key not in self._timelines:
            self._timelines[key] = estimator.timeline_of_tensors(recipe, cluster)
        return estimator.with_lasting(self._timelines[key], recipe, cluster)

    def host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """Host memory that each node needs."""
        _, states = self.estimator(recipe)
        return states.host_bytes(recipe, cluster)

    def resume_host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """Host memory that each node needs for going on from a checkpoint."""
        _, states = self.estimator(recipe)
        return states.resume_host_bytes(recipe, cluster)

    def disk(self, recipe: Recipe) -> DiskSpace:
        """Disk space of the run, on any cluster."""
        return self._disk_of.get(self.any_batch(recipe))

    def _new_disk(self, recipe: Recipe) -> DiskSpace:
        estimator, _ = self.estimator(recipe)
        key = (id(estimator), recipe.engine_key, recipe.optimizer)
        if key not in self._disks:
            self._disks[key] = estimator.disk(recipe)
        return self._disks[key]

    # -- seconds -------------------------------------------------------------------------------------------------

    def exact_seconds(self, recipe: Recipe, cluster: Cluster) -> float | None:
        """Seconds of the whole run by the recipe's own micro batch, as its estimate has them; None if a speed is not
        known."""
        gpu = cluster.node.gpu
        size = (recipe.micro_batch, recipe.grad_accum)
        trace = self.estimator(recipe)[0].trace(recipe, gpu.kernel_capability)
        micro_batch = micro_batch_seconds(trace, gpu, recipe)
        besides = self.besides_computing(recipe, cluster, size)
        if micro_batch is None or besides is None:
            return None
        steps = self.num_steps(cluster, size) * besides.step_seconds(micro_batch.phases)
        return steps + self._evaluation_seconds(recipe, cluster, size)

    def seconds(self, recipe: Recipe, cluster: Cluster, size: BatchSize) -> float | None:
        """Seconds of the whole run with another batch, by secants; None if a speed is not known."""
        recipe = self.any_batch(recipe)
        micro_batch = self._micro_batch_seconds(recipe, cluster, size[0])
        besides = None if micro_batch is None else self.besides_computing(recipe, cluster, size)
        if micro_batch is None or besides is None:
            return None
        steps = self.num_steps(cluster, size) * besides.step_seconds(micro_batch)
        return steps + self._evaluation_seconds(recipe, cluster, size)

    def knows_seconds(self, recipe: Recipe, cluster: Cluster, size: BatchSize) -> bool:
        """Whether ``seconds`` are known for sure, without what is sent."""
        if cluster.num_gpus > 1 and links_of(cluster) is None:
            return False
        is_known = self.speeds.of(self.any_batch(recipe), cluster.node.gpu) is not None
        return is_known and self.besides_computing(recipe, cluster, size, sends=False) is not None

    def _evaluation_seconds(self, recipe: Recipe, cluster: Cluster, size: BatchSize) -> float:
        """Seconds of all evaluations of the run, whose batch is that of no step; 0 where they are not known."""
        evaluation, recipe = recipe.evaluation, self.any_batch(recipe)
        if evaluation is None:
            return 0.0
        key = (id(recipe), id(cluster), size[1])
        if key not in self._evaluating:
            estimator, batched = self.estimator(recipe)[0], self.with_batch(recipe, size)
            self._evaluating[key] = cluster, estimator.evaluation_time(batched, cluster)
        _, time = self._evaluating[key]
        num_evaluations = evaluation.num_in(self.num_steps(cluster, size), self.workload.epochs)
        return 0.0 if time is None else num_evaluations * time.seconds

    def num_steps(self, cluster: Cluster, size: BatchSize) -> int:
        return self.workload.num_steps(size[0] * size[1] * cluster.num_gpus // self._sequence_parallel)

    def _micro_batch_seconds(self, recipe: Recipe, cluster: Cluster, micro_batch: int) -> PhaseSeconds | None:
        gpu = cluster.node.gpu
        speed = self.speeds.of(recipe, gpu)
        return None if speed is None else self.micro_batches(recipe, gpu.kernel_capability).seconds(micro_batch, speed)

    def besides_computing(
        self, recipe: Recipe, cluster: Cluster, size: BatchSize, *, sends: bool = True
    ) -> BesidesComputing | None:
        """What a step takes besides computing: the same for all ways to compute a micro batch that use weights in the
        same order. What a GPU sends to itself takes no time, and nothing else depends on what is sent."""
        recipe = self.any_batch(recipe)
        alike, sends = self._alike.get(recipe), sends and cluster.num_gpus > 1
        key = (id(alike), id(cluster), size, sends)
        besides = self._besides.get(key)
        if besides is None:
            batched = self.with_batch(alike, size)
            if sends:
                silent = self.besides_computing(recipe, cluster, size, sends=False)
                sent = self._collectives(alike, batched, cluster)
                made = None if silent is None else silent.with_collectives(sent, cluster)
            else:
                kernels = self._kernels.get(recipe, cluster.node.gpu.kernel_capability)
                rollout = self._rollouts.get(batched, kernels, cluster.num_gpus)
                table = self.estimator(recipe)[0].table
                made = besides_computing(table, (), batched, cluster, self.workload, rollout)
            besides = self._besides[key] = cluster, made
        return besides[1]

    def _new_rollout(self, recipe: Recipe, capability: Capability, num_ranks: int) -> RolloutWork | None:
        """The same on all machines of as many GPUs that meet the same kernels."""
        estimator, _ = self.estimator(recipe)
        return estimator.rollout_work(recipe, capability, num_ranks=num_ranks)

    def _first_alike(self, recipe: Recipe) -> Recipe:
        """One of the recipes that start the same collectives and update the same states, with the first of the losses
        that are tried: another prefetches elsewhere under stage 3, which only exact seconds tell apart.

        Stage 3 gathers weights again for layers that run again, and ranks that share samples trade heads again.
        """
        estimator, _ = self.estimator(recipe)
        runs_again = recipe.zero_stage == 3 or recipe.sequence_parallel > 1
        key = id(estimator), recipe.engine_key, checkpoints(recipe) if runs_again else None, recipe.task
        if key not in self._firsts:
            self._firsts[key] = recipe.with_changes(loss=self._switches[0].loss)
        return self._firsts[key]

    def _collectives(self, alike: Recipe, recipe: Recipe, cluster: Cluster) -> tuple[Collectives, ...]:
        """What a step of ``recipe`` sends, ``alike`` with a batch: weights and gradients, whatever that is; where ranks
        share samples, heads too, by the micro batch."""
        estimator, _ = self.estimator(alike)
        capability, num_ranks = cluster.node.gpu.kernel_capability, cluster.num_gpus
        if recipe.sequence_parallel > 1:
            trace = estimator.trace(recipe, capability)
        else:
            trace = self.micro_batches(alike, capability).trace
        key = (id(alike), num_ranks, recipe.grad_accum, id(trace))
        if key not in self._sent:
            self._sent[key] = step_collectives(estimator.table, recipe, num_ranks=num_ranks, trace=trace)
        return self._sent[key]


def checkpoints(recipe: Recipe) -> tuple[bool, bool]:
    """Whether there are checkpoints of the language model's layers, and of all others."""
    return recipe.activation_checkpointing, recipe.vision_activation_checkpointing
