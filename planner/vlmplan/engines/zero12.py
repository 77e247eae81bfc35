"""ZeRO stages 1 and 2 (``stage_1_and_2.py``): each rank updates a slice of the flat buffer of trained weights.

Gradients are copied into a reduce bucket: under stage 2 as they arrive in every micro batch, under stage 1 in the last
one of a step, as they arrive with ``overlap_comm`` and else after it. Buckets are all-reduced whole
(``use_multi_rank_bucket_allreduce``), and the rank keeps its share in a buffer of its own. A weight of its that no
output depends on gets a gradient of zeros beside that buffer, but where the host has the gradients
(``get_all_grad_tensors``).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from vlmplan.architecture.model import NamedParameter
from vlmplan.engines.collectives import overfills
from vlmplan.engines.engine import OwnBytes, weight
from vlmplan.engines.events import NULL_SINK, Component, Marked, Sink, Stream
from vlmplan.engines.optimizer_states import NORM_BYTES
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import Partition, slices
from vlmplan.engines.zero12_formulas import Zero12Formulas
from vlmplan.recipe import Recipe

PARTITION, EARLIER_PARTITION = "partition", "earlier partition"
"""Owners of this rank's gradients: of the micro batch that runs, and of those before it in the same step."""
ZEROS = "zeros"
"""The same of gradients that no backward gives."""


class Zero12(Zero12Formulas):
    """Stage 1 or 2, as ``recipe.zero_stage`` says."""

    def __init__(
        self, table: ParameterTable, recipe: Recipe, *, num_ranks: int = 1, rank: int = 0, sink: Sink = NULL_SINK
    ) -> None:
        super().__init__(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
        self._waiting: list[int] = []
        self._left: list[int] = []
        self._num_waiting = 0
        self._has_buckets = self._owns_partition = self._has_earlier = False
        self._is_last, self._reduces_on_arrival = True, False

    @staticmethod
    def overlapped_micro_batches(recipe: Recipe) -> int:
        """Stage 1 sends in the last micro batch alone."""
        if not recipe.zero.overlap_comm:
            return 0
        return recipe.grad_accum if recipe.zero_stage == 2 else 1

    @property
    def has_streams(self) -> bool:
        return self.recipe.zero.overlap_comm

    @property
    def reduces_last_alone(self) -> bool:
        return self.recipe.zero_stage == 1 and self.recipe.zero.overlap_comm

    # -- the walk ------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """All trained weights into one flat buffer, then the master copy of a slice of it, by way of a clone, and once
        a gradient of its size (``initialize_optimizer_states``). With the optimizer on the host the clone goes there as
        it is, since a blocking copy from the GPU changes the type there (``copy_requires_temporaries``,
        ``aten/src/ATen/native/cuda/Copy.cu``), and a staging buffer of the largest gradient stays on the GPU."""
        super().build()
        sink, num_elements = self.sink, self.partition.num_elements
        own, master = num_elements * self.weight_bytes, num_elements * self.master_bytes
        self._flatten(self.trained, own * self.num_ranks, self.table.total_bytes)
        if self.offloads_optimizer:
            sink.transient(Component.TEMPORARIES, [own])
            sink.keep(Component.COMMUNICATION_BUFFERS, self.table.largest_trained * self.weight_bytes)
            return
        self._keep_master_copy(own, master)
        sink.transient(Component.TEMPORARIES, [master])

    def _flatten(self, entries: Iterable[NamedParameter], flat_bytes: int, held_bytes: int) -> None:
        """Weights into a buffer of ``flat_bytes``, beside which the GPU holds ``held_bytes``."""
        sink = self.sink
        sink.empty_cache()
        on_host = self._flattens_on_host(held_bytes, flat_bytes)
        if not on_host:
            sink.keep(Component.WEIGHTS, flat_bytes)
        for entry in entries:
            sink.free(weight(entry))
        if on_host:
            sink.empty_cache()
            sink.keep(Component.WEIGHTS, flat_bytes)

    def _keep_master_copy(self, own: int, master: int) -> None:
        """The master copy of a slice of ``own`` bytes, by way of a clone where the types differ."""
        if own == master:
            self.sink.keep(Component.OPTIMIZER_STATES, own)
            return
        self.sink.allocate("clone", Component.TEMPORARIES, own)
        self.sink.keep(Component.OPTIMIZER_STATES, master)
        self.sink.free("clone")

    def resume_accumulation(self, ordinals: Iterable[int]) -> None:
        if self.recipe.zero_stage == 1:
            super().resume_accumulation(ordinals)
            self._set_up_buckets()
        elif not self.offloads_optimizer:
            self.sink.allocate(EARLIER_PARTITION, Component.GRADIENTS, self.owned_bytes)
            self._keep_zeros(self.zero_ordinals)
        self._has_earlier = self.recipe.zero_stage == 2

    def begin_micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        self._is_last = is_last
        self._reduces_on_arrival = self.recipe.zero_stage == 2 or (self.recipe.zero.overlap_comm and is_last)
        if not accumulates:
            self._has_earlier = False

    def expect_gradient(self) -> None:
        self._set_up_buckets()

    def hold_gradient(self, ordinal: int) -> None:
        """What waits is reduced already where this gradient will not find room."""
        if self._reduces_on_arrival:
            self._make_room(ordinal)

    def take_gradient(self, ordinal: int) -> None:
        if self._reduces_on_arrival:
            self._reduce_later(ordinal)

    def end_backward(self) -> None:
        """Reduce what waits, and free the buckets. Stage 2 adds the partition to that of earlier micro batches, and
        zeros to zeros."""
        if self._reduces_on_arrival:
            self._end_reduction()
        if self.recipe.zero_stage == 1:
            return
        if self._has_earlier:
            self.sink.free(PARTITION)
        else:
            self.sink.rename(PARTITION, EARLIER_PARTITION)
        if self._is_last:
            self.sink.rename(EARLIER_PARTITION, PARTITION)
        self._has_earlier = not self._is_last
        self._owns_partition = False

    def reduce_gradients(self) -> None:
        """Stage 1 without ``overlap_comm``: every kept gradient goes through the bucket, in parameter order."""
        if self._reduces_on_arrival:
            return
        for ordinal in self._flat_order:
            self._reduce_later(ordinal)
        self._end_reduction()

    def _end_reduction(self) -> None:
        """``independent_gradient_partition_epilogue``, whose end drops all gradients (``_clear_param_grad_only``)."""
        self._reduce_waiting()
        if self.num_ranks > 1:
            self.sink.mark(())
        self._make_updates()
        self._free_buckets()
        for ordinal in self._left:
            self.sink.free(ordinal)
        self._left.clear()

    def _make_updates(self) -> None:
        """All gradients have been reduced, and the buckets are still there: zeros come, and an optimizer may work on
        whole gradients."""
        if self._has_earlier:
            self.sink.transient(Component.GRADIENTS, self._sizes_of(self.zero_ordinals))
        else:
            self._keep_zeros(self.zero_ordinals)

    def _keep_zeros(self, ordinals: Sequence[int]) -> None:
        for ordinal, num_bytes in zip(ordinals, self._sizes_of(ordinals), strict=True):
            self.sink.allocate((ZEROS, ordinal), Component.GRADIENTS, num_bytes)

    def _free_zeros(self, ordinals: Sequence[int]) -> None:
        for ordinal in ordinals:
            self.sink.free((ZEROS, ordinal))

    @property
    def _flat_order(self) -> Iterable[int]:
        """The trained parameters that get a gradient as they lie in flat buffers."""
        return self.table.reduced_ordinals

    def step(self, *, is_first: bool) -> None:
        """Norms of the partition's slices, its gradients in one flat tensor (p) and their cast to the master type (m),
        then the update. With the optimizer on the host all of that is there."""
        sink = self.sink
        self._owns_partition = False
        if self.offloads_optimizer:
            self._free_gradients()
            sink.free(PARTITION)
            return
        for numel in slices(self.table, self.partition):
            sink.transient(Component.TEMPORARIES, [numel * NORM_BYTES])
        self._flatten_gradients(self.partition.num_elements, self.weight_bytes)
        self._free_gradients()
        sink.free(PARTITION)
        self._free_zeros(self.zero_ordinals)
        self._update_flat(self.partition.num_elements, is_first=is_first)
        self._free_flat()

    # -- the reduce bucket ---------------------------------------------------------------------------------------

    @property
    def _is_contiguous(self) -> bool:
        return self.recipe.zero.contiguous_gradients or self.offloads_optimizer

    def _set_up_buckets(self) -> None:
        """The reduce buckets: at the first gradient of a backward, two with ``overlap_comm``; stage 1 keeps them from
        the first micro batch of a step to the reduction after the last (``setup_buckets``,
        ``_release_ipg_buffers``)."""
        if self._has_buckets:
            return
        self._has_buckets = True
        if self._is_contiguous:
            for number in range(2 if self.recipe.zero.overlap_comm else 1):
                num_bytes = self._bucket_elements * self.weight_bytes
                self.sink.allocate(("bucket", number), Component.COMMUNICATION_BUFFERS, num_bytes)

    def _free_buckets(self) -> None:
        for number in range(2):
            self.sink.free(("bucket", number))
        self._has_buckets = False

    def _reduce_later(self, ordinal: int) -> None:
        """A gradient moves into the bucket; one that is larger waits beside it, as a copy where gradients go to the
        host (``grad_reduc.detach().clone()``)."""
        numel = self.table.numels[ordinal]
        self._make_room(ordinal)
        if not self._is_beside_bucket(ordinal):
            self.sink.free(ordinal)
        elif self.offloads_optimizer:
            self.sink.clone(ordinal, self.table.gradient_sizes[ordinal])
        self._waiting.append(ordinal)
        self._num_waiting += numel

    def _make_room(self, ordinal: int) -> None:
        if overfills(self._num_waiting, self.table.numels[ordinal], self._bucket_elements):
            self._reduce_waiting()

    def _reduce_waiting(self) -> None:
        """All-reduce what waits, and keep this rank's share, on the host by way of its norm and its cast. A gradient
        outside of the bucket, of which the rank has no share, is dropped at once under stage 2 alone
        (``reduce_ipg_grads``)."""
        sink = self.sink
        for sent in self._sent_bytes():
            if any(sent):
                sink.transient(Component.COMMUNICATION_BUFFERS, sent, Stream.REDUCTION)
        if any(map(self._is_beside_bucket, self._waiting)):
            for ordinal in self._waiting:
                self._keep_shares((ordinal,))
        elif self._waiting:
            self._keep_shares(tuple(self._waiting))
        self._waiting.clear()
        self._num_waiting = 0

    def _keep_shares(self, ordinals: tuple[int, ...]) -> None:
        if self.num_ranks > 1:
            self.sink.mark(ordinals)
        for ordinal in ordinals:
            self._keep_share(ordinal)
        if self.num_ranks > 1:
            self.sink.mark(None)

    def _keep_share(self, ordinal: int) -> None:
        """``own_bytes`` says the same of any rank. What goes to the host is looked at and cast in the last micro batch
        alone, and dropped there (``copy_grads_in_partition``, ``async_inplace_copy_grad_to_fp32_buffer_from_gpu``)."""
        sink, owned = self.sink, self._owned_numel(ordinal)
        waits = owned > 0 and self.offloads_optimizer and not self._is_last
        if owned and self.offloads_optimizer:
            for num_bytes in () if waits else self._offloading_bytes(owned):
                sink.transient(Component.TEMPORARIES, [num_bytes], Stream.REDUCTION)
        elif owned and not self._owns_partition:
            self._owns_partition = True
            sink.allocate(PARTITION, Component.GRADIENTS, self.owned_bytes, Stream.REDUCTION)
        if self._is_beside_bucket(ordinal):
            if (owned or self.recipe.zero_stage == 2) and not waits:
                sink.free(ordinal)
            else:
                self._left.append(ordinal)

    def own_bytes(self, marks: Iterable[Marked], *, accumulates: bool) -> Iterator[OwnBytes]:
        own = self.own_resident_bytes
        if accumulates and self.recipe.zero_stage == 2:
            own += self.own_gradient_bytes
        owns_partition = False
        for marked in marks:
            if marked == ():
                yield OwnBytes(own, own + self._update_bytes(accumulates=accumulates))
                return
            start, owned = own, [one for one in marked or () if one in self._own_ordinals]
            passing = 0
            if owned and self.offloads_optimizer:
                passing = max(max(self._offloading_bytes(self._owned_numel(one))) for one in owned)
            elif owned and not owns_partition:
                owns_partition = True
                own += self.owned_bytes
            yield OwnBytes(start, own + passing)
            if marked and not owned and self.recipe.zero_stage == 1 and self._is_beside_bucket(marked[0]):
                own += self.table.gradient_sizes[marked[0]]

    def share_begins(self, places: Mapping[int, int]) -> int | None:
        has_beside = not self._is_contiguous or self.table.largest_trained > self._bucket_elements
        if (has_beside and self.recipe.zero_stage == 1) or self.offloads_optimizer or self.table.idle:
            return None
        return min([places[ordinal] for ordinal in self._own_ordinals if ordinal in places], default=len(places))

    def _is_beside_bucket(self, ordinal: int) -> bool:
        """Whether a gradient is reduced where it is, and not out of the bucket."""
        return not self._is_contiguous or self.table.numels[ordinal] > self._bucket_elements

    def _offloading_bytes(self, numel: int) -> list[int]:
        """Bytes of the tensors, one after the other, by way of which so many elements of a gradient go to the host."""
        cast = [numel * self.master_bytes] if self.master_bytes != self.weight_bytes else []
        return [numel * NORM_BYTES, *cast]

    def _sent_bytes(self) -> Iterator[list[int]]:
        """What each all-reduce of a reduction takes: a flat copy of several pieces, and the cast where they are sent in
        float32. A piece has one owner. A gradient that is larger than the bucket is sent as soon as its pieces exceed
        the bucket, and what is left of it at last (``allreduce_and_scatter``)."""
        cast_bytes = self.reduced_bytes if self.reduced_bytes != self.weight_bytes else 0
        numel = self._num_waiting
        if numel <= self._bucket_elements:
            copied = numel if self._num_owners() > 1 else 0
            yield [copied * self.weight_bytes, numel * cast_bytes]
            return
        end, size = self._place_of(self._waiting[0])
        cuts = [end - numel, *range(-(-(end - numel + 1) // size) * size, end, size), end]
        running, count = 0, 0
        for start, stop in pairwise(cuts):
            running, count = running + stop - start, count + 1
            if running > self._bucket_elements or stop == end:
                yield [(running if count > 1 else 0) * self.weight_bytes, running * cast_bytes]
                running = count = 0

    def _owned_numel(self, ordinal: int) -> int:
        """Elements of the parameter inside this rank's partition, not 0 where it reaches into it."""
        partition, (end, _) = self._partition_with(ordinal), self._place_of(ordinal)
        return max(0, min(end, partition.end) - max(end - self.table.numels[ordinal], partition.start))

    def _partition_with(self, ordinal: int) -> Partition:
        """This rank's, of the flat buffer in which the parameter lies."""
        del ordinal
        return self.partition

    def _num_owners(self) -> int:
        """Runs of neighbouring elements with one owner among what waits, counted to 2: one run is reduced where it
        lies, several are copied, whichever flat buffers they are of (``average_tensor``)."""
        runs, previous = 0, -1
        for ordinal in self._waiting:
            end, size = self._place_of(ordinal)
            first, last = (end - self.table.numels[ordinal]) // size, (end - 1) // size
            runs += (first != previous) + (last - first)
            previous = last
            if runs > 1:
                return runs
        return runs
