"""What torch's allocator reserves for the recipes of a traced model: its replay, where it is replayed."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import TypeAlias

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.storage_log import LoggingTape, expanded
from vlmplan.estimation.micro_batch import tape_for
from vlmplan.estimation.references import beside_bytes, beside_sizes
from vlmplan.estimation.traced_model import TracedModel, differs_at_first
from vlmplan.hardware import Cluster
from vlmplan.memory.allocator import CachingAllocator
from vlmplan.memory.device import room_for_weights
from vlmplan.memory.expandable import ExpandableAllocator
from vlmplan.memory.gathered_blocks import GatheredBlocks
from vlmplan.memory.inference_engine import InferenceEngine
from vlmplan.memory.lasting_blocks import Lasting
from vlmplan.memory.overhead import workspace_sizes
from vlmplan.memory.phases import num_waiting
from vlmplan.memory.precomputed_reference import PrecomputedReservation
from vlmplan.memory.replayed_steps import MicroBatch, alike, is_followed, is_replayed
from vlmplan.memory.reservation import EvaluatedOperations, Reservation
from vlmplan.memory.reserved_peaks import ReservedPeak
from vlmplan.memory.rollout_reservation import RolloutReservation
from vlmplan.phase_names import FORWARD
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import Reference, TaskTrainer

Replay: TypeAlias = Callable[..., ReservedPeak]
"""Takes a capacity, and what may be reserved before it is given up."""


class ReplayedModel(TracedModel):
    """A traced model, whose storages can be followed through the allocator."""

    @cached_property
    def _gathered_blocks(self) -> GatheredBlocks:
        return GatheredBlocks()

    def _replay(self, recipe: Recipe, cluster: Cluster, rank: int) -> "tuple[Hashable, Replay] | None":
        """The replay that tells what torch cannot do without; None where tensors do."""
        return self._followed(recipe, cluster, rank) if is_replayed(recipe) else None

    def _reserves(self, recipe: Recipe, cluster: Cluster, rank: int) -> Callable[[int | None], int] | None:
        """What torch reserves while there is room, by the capacity; None where the same decides what fits."""
        if is_replayed(recipe) or not is_followed(recipe) or cluster.node.gpu.is_cpu:
            return None
        return lambda capacity_bytes: self._samples.replays.total_bytes(
            *self._followed(recipe, cluster, rank), capacity_bytes
        )

    def _followed(self, recipe: Recipe, cluster: Cluster, rank: int) -> tuple[Hashable, Replay]:
        """The replay of torch's allocator, and what it is known by."""
        micro_batches = self._with_first(alike(self._logged(recipe, cluster), recipe), recipe, cluster)
        replay = self._replayed(recipe, cluster, rank, micro_batches)
        gpu = cluster.node.gpu
        backend, workspaces = self.backend(recipe, gpu.kernel_capability), tuple(workspace_sizes(gpu))
        room_bytes = self.room_bytes(recipe, cluster)
        return (recipe, cluster.num_gpus, rank, backend, gpu.is_cpu, workspaces, room_bytes), replay

    def _with_first(
        self, micro_batches: Sequence[MicroBatch], recipe: Recipe, cluster: Cluster
    ) -> Sequence[MicroBatch]:
        """Those of a run with the first as it is: of this estimator's samples."""
        if not differs_at_first(recipe):
            return micro_batches
        return [self._logged(recipe, cluster, is_first=True), *micro_batches[1:]]

    def _logged(self, recipe: Recipe, cluster: Cluster, *, is_first: bool = False) -> MicroBatch:
        """One micro batch with every storage that it makes and frees."""
        backend = self.backend(recipe, cluster.node.gpu.kernel_capability)
        key = (*self._trace_key(recipe, backend), is_first)
        if key not in self._samples.operations:
            trace = self._run(tape_for(LoggingTape, recipe, is_first=is_first), recipe, backend)
            self._samples.operations[key] = trace, expanded(trace)
        return self._samples.operations[key]

    def _replayed(self, recipe: Recipe, cluster: Cluster, rank: int, micro_batches: Sequence[MicroBatch]) -> Replay:
        is_grpo = recipe.task is not None and recipe.task.is_grpo
        backend = self.backend(recipe, cluster.node.gpu.kernel_capability)
        models = beside_sizes(self.table, recipe, cluster.num_gpus)
        engine = self._samples.rollouts.inference_engine(recipe, backend, cluster.node.gpu) if is_grpo else None
        if engine is not None:
            models.append(engine.training_bytes)
        kind = self._reservation_of_grpo(recipe, cluster, backend, engine) if is_grpo else self._kind(recipe, backend)
        step_batch = self._sent_bytes(recipe) if recipe.keeps_batches and not is_grpo else ()
        made = partial(
            kind,
            self.table,
            recipe,
            micro_batches,
            num_ranks=cluster.num_gpus,
            rank=rank,
            lasting=Lasting(step_batch, workspace_sizes(cluster.node.gpu), models, self.table.table_sizes(recipe)),
            evaluated=self._evaluated_operations(recipe, cluster),
            room_bytes=self.room_bytes(recipe, cluster),
            gathered_blocks=self._gathered_blocks,
        )

        def replay(capacity_bytes: int | None, most_bytes: int | None = None) -> ReservedPeak:
            if recipe.expandable_segments:
                allocator: CachingAllocator | ExpandableAllocator = ExpandableAllocator(capacity_bytes=capacity_bytes)
            else:
                goes_on = most_bytes is None
                allocator = CachingAllocator(capacity_bytes=capacity_bytes, most_bytes=most_bytes, goes_on=goes_on)
            return made(allocator=allocator).peak_reserved()

        return replay

    def _reservation_of_grpo(
        self, recipe: Recipe, cluster: Cluster, backend: AttentionBackend, engine: InferenceEngine | None
    ) -> Callable[..., Reservation]:
        """Makes a replay with a rollout before each step; ``engine``: vLLM beside the trainer, where it generates."""
        answers = self._sent_bytes(recipe) * num_waiting(recipe, FORWARD)
        rollout = self._samples.rollouts.operations(recipe, backend, num_ranks=cluster.num_gpus)
        training = 0 if engine is None else engine.training_bytes
        awake = (0, 0) if engine is None else (engine.syncing_bytes - training, engine.awake_bytes - training)
        return partial(RolloutReservation, rollout=rollout, answers=answers, awake=awake)

    def _kind(self, recipe: Recipe, backend: AttentionBackend) -> Callable[..., Reservation]:
        """Makes a replay with what comes before the first step."""
        is_of_trl = recipe.task is not None and recipe.task.trainer is TaskTrainer.TRL
        if recipe.reference is not Reference.PRECOMPUTED or not is_of_trl or recipe.fsdp:
            return Reservation
        traces = self._samples.references.precomputed(LoggingTape, recipe, backend)
        return partial(PrecomputedReservation, precomputed=[(trace, expanded(trace)) for trace in traces])

    def _sent_bytes(self, recipe: Recipe) -> list[int]:
        return self.model.sent_bytes(self._samples.batch(recipe))

    def _evaluated_operations(self, recipe: Recipe, cluster: Cluster) -> EvaluatedOperations | None:
        """What the recipe's evaluation runs, with every storage that it makes and frees."""
        if recipe.evaluation is None:
            return None
        gpu = cluster.node.gpu
        backend = self.backend(recipe, gpu.kernel_capability)
        if recipe.task is not None and recipe.task.is_grpo:
            return self._samples.rollouts.evaluated_operations(recipe, backend, num_ranks=cluster.num_gpus)
        return self._samples.evaluations.operations(recipe, backend, num_ranks=cluster.num_gpus, is_on_cpu=gpu.is_cpu)

    def room_bytes(self, recipe: Recipe, cluster: Cluster) -> int | None:
        """``Engine.room_bytes`` of a rank."""
        other_models = beside_bytes(self.table, recipe, cluster.num_gpus) + self.table.table_bytes(recipe)
        return room_for_weights(self.table, recipe, cluster, other_models=other_models)
