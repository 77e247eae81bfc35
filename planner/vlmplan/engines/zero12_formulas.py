"""ZeRO stages 1 and 2 in closed form: what they hold of a model, bounds of a micro batch beside that, what they send.

For searching, where ``engines.zero12`` would walk a step for each of thousands of setups; tests hold one to the other.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, Reductions, StepPhase, num_chunks, reductions
from vlmplan.engines.components import Components, higher
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.optimizer_states import NORM_BYTES, state_bytes, update_bytes
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import (
    Partition,
    Share,
    idle_elements,
    idle_ordinals,
    largest_slice,
    overlapping,
    owned_elements,
    partition_elements,
    partition_of,
    shares,
)
from vlmplan.engines.profile import MicroBatchProfile
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.units import DType


class Zero12Formulas(Engine):
    """Stages 1 and 2 as ``Engine`` has them in closed form, and what a rank owns, which the walk needs too."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self.reduced_bytes = DType.FLOAT32.num_bytes if self.shares_samples else self.weight_bytes
        """Of an element of a gradient as it is sent: float32 where ranks share samples (``allreduce_bucket``)."""

    @classmethod
    def rank_of_highest_step(cls, table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
        """The rank whose step takes most. With the optimizer on the host a step takes nothing: the rank that takes the
        norm of most elements."""
        offloads, m = recipe.offload_optimizer is not Offload.NONE, recipe.master_dtype.num_bytes
        key = (Zero12Formulas.rank_of_highest_step, num_ranks, offloads, m)
        if key not in table.memo:
            p, size = table.trained_dtype.num_bytes, partition_elements(table.num_trained, num_ranks)
            cast = size * (p + (m if m != p else 0))

            def in_step(share: Share) -> int:
                norm = share.largest * NORM_BYTES
                return norm if offloads else share.kept * p + max(norm, cast)

            taken = [in_step(share) for share in shares(table, num_ranks)]
            table.memo[key] = taken.index(max(taken))
        return int(table.memo[key])

    @cached_property
    def partition(self) -> Partition:
        return partition_of(self.table.num_trained, self.num_ranks, self.rank)

    @cached_property
    def owned_bytes(self) -> int:
        """The buffer for this rank's gradients: of whole parameters that reach into its partition, once one of them
        gets a gradient (``copy_grads_in_partition``)."""
        owned = owned_elements(self.table, self.partition)
        return owned * self.weight_bytes if owned > idle_elements(self.table, self.partition) else 0

    @cached_property
    def zero_ordinals(self) -> list[int]:
        """Parameters of this rank to which no backward gives a gradient: theirs are zeros, whole ones too."""
        return [] if self.offloads_optimizer else idle_ordinals(self.table, self.partition)

    @cached_property
    def zero_bytes(self) -> int:
        return sum(self._sizes_of(self.zero_ordinals))

    @cached_property
    def _own_ordinals(self) -> Collection[int]:
        """The parameters that reach into this rank's partition."""
        return range(*overlapping(self.table, self.partition))

    def _flattens_on_host(self, held_bytes: int, flat_bytes: int) -> bool:
        """Whether weights go to the host, are flattened there and come back as one buffer: where the GPU has no room
        for that beside what it holds (``flatten_on_accelerator``)."""
        return self.room_bytes is not None and held_bytes + flat_bytes > self.room_bytes

    @property
    def flattened_on_host_bytes(self) -> int:
        """Host memory of a rank for that: weights and their buffer."""
        flat = self.partition.num_elements * self.num_ranks * self.weight_bytes
        if not self._flattens_on_host(self.table.total_bytes, flat):
            return 0
        return self.table.num_trained * self.weight_bytes + flat

    @property
    def own_gradient_bytes(self) -> int:
        return 0 if self.offloads_optimizer else self.owned_bytes + self.zero_bytes

    def _update_bytes(self, *, accumulates: bool) -> int:
        """What this rank makes once all gradients have been reduced, and others may not: zeros, or zeros to be added
        to zeros."""
        del accumulates
        return self.zero_bytes

    @property
    def _most_kept_bytes(self) -> int:
        """The most that any rank keeps of gradients and zeros."""
        return max([share.owned + share.idle for share in shares(self.table, self.num_ranks)]) * self.weight_bytes

    def _sizes_of(self, ordinals: Iterable[int]) -> list[int]:
        return [self.table.gradient_sizes[ordinal] for ordinal in ordinals]

    @property
    def _bucket_elements(self) -> int:
        return self.recipe.zero.reduce_bucket_size

    def states(self) -> ModelStates:
        """Weights whole, in one flat buffer: pΦ. Master weights mΦ/N and states sΦ/N of the rank's partition, on the
        GPU or the host. At init the flat buffer is beside the weights where there is room: 2pΦ. In the step the
        partition's gradients are flattened (p) and cast (m): 2Ψ + 20Φ/N for bf16 and AdamW =
        2Ψ + (4 + 8 + 2 + 2 + 4)Φ/N."""
        table, recipe, p, m = self.table, self.recipe, self.weight_bytes, self.master_bytes
        size = self.partition.num_elements
        flat_buffer = size * self.num_ranks * p
        weights = Components(weights=table.frozen_bytes + flat_buffer)
        on_host = self._flattens_on_host(table.total_bytes, flat_buffer)
        flattening = Components(weights=table.total_bytes + (0 if on_host else flat_buffer))
        if self.offloads_optimizer:
            resident = weights + Components(communication_buffers=table.largest_trained * p)
            init = higher(higher(flattening, weights + Components(temporaries=size * p)), resident)
            return ModelStates(at_start=resident, resident=resident, init_peak=init, step_peak=resident)
        start = weights + Components(optimizer_states=size * m)
        init = higher(flattening, start + Components(temporaries=size * max(p, m)))
        resident = start + Components(optimizer_states=state_bytes(recipe, [(size,)], recipe.master_dtype))
        norm = largest_slice(table, self.partition) * NORM_BYTES
        cast = size * (p + (m if m != p else 0))
        update = size * m + update_bytes(recipe, [(size,)], recipe.master_dtype)
        step = higher(
            resident + Components(gradients=self.owned_bytes + self.zero_bytes, temporaries=max(norm, cast)),
            resident + Components(temporaries=update),
        )
        return ModelStates(at_start=start, resident=resident, init_peak=init, step_peak=step)

    def micro_batch_bound(self, profile: MicroBatchProfile, *, accumulates: bool) -> tuple[int, int]:
        table, p, largest = self.table, self.weight_bytes, self.table.largest_trained * self.weight_bytes
        owned = 0 if self.offloads_optimizer else self._most_kept_bytes
        buckets = (2 if self.recipe.zero.overlap_comm else 1) * self._bucket_elements * p
        cast = self.reduced_bytes if self.reduced_bytes != p else 0
        copied = max(self._bucket_elements, table.largest_trained) * (p + cast)
        if self.recipe.zero_stage == 1:
            accumulated = table.trained_bytes if accumulates else 0
            kept = max(profile.kept_peak, profile.dropped_peak + accumulated, table.trained_bytes + copied)
            if self.offloads_optimizer:
                kept += NORM_BYTES * table.largest_trained  # the norm of a gradient before it goes to the host
            waiting = accumulated + buckets if accumulated else 0
            return profile.forward_peak + waiting, kept + buckets + owned + largest
        earlier = owned if accumulates else 0
        highest = profile.dropped_peak + copied
        if self.offloads_optimizer:
            highest = max(highest, profile.norm_peak)
        return profile.forward_peak + earlier, highest + buckets + owned + earlier + largest

    def collectives(self, trace: Trace) -> Sequence[Collectives]:
        """Gradients bucket by bucket, under stage 2 after every micro batch; updated weights in one gather."""
        often = self.recipe.grad_accum if self.recipe.zero_stage == 2 else 1
        is_late = self.recipe.zero_stage == 1 and not self.recipe.zero.overlap_comm
        reduced = reductions(self.table, trace, self._bucket_elements, in_parameter_order=is_late)
        count = reduced.num_buckets + self._num_cuts(reduced)
        num_bytes = reduced.num_elements * self.reduced_bytes
        gradients = Collectives(CollectiveKind.ALL_REDUCE, StepPhase.BACKWARD, often * count, often * num_bytes)
        if self.num_ranks == 1:
            return (gradients,)
        weights = partition_elements(self.table.num_trained, self.num_ranks) * self.num_ranks * self.weight_bytes
        return gradients, Collectives(CollectiveKind.ALL_GATHER, StepPhase.STEP, 1, weights)

    def _num_cuts(self, reduced: Reductions) -> int:
        """A gradient that is larger than the bucket is cut where its owners change (``average_tensor``), and its pieces
        are sent once they exceed the bucket (``allreduce_no_retain``)."""
        num_cuts = 0
        for ordinal in reduced.larger:
            end, size = self._place_of(ordinal)
            start = end - self.table.numels[ordinal]
            first = min(end, (start // size + 1) * size) - start
            num_whole, last = divmod(end - start - first, size)
            pieces = [(first, 1), (size, num_whole), (last, 1)]
            num_cuts += num_chunks(pieces, self._bucket_elements) - 1
        return num_cuts

    def _place_of(self, ordinal: int) -> tuple[int, int]:
        """The element behind the parameter in its flat buffer, and how many of that each rank updates."""
        return self.table.ends[ordinal], self.partition.num_elements
