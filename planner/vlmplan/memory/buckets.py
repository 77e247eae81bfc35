"""ZeRO stages 1 and 2: how gradients pass through the reduce bucket into a rank's partition.

A simulation of ``DeepSpeedZeroOptimizer`` (``deepspeed/runtime/zero/stage_1_and_2.py``, 0.19.8) in elements: it
decides when the bucket is full, what a reduction copies, and when the rank's own gradient buffer appears.
"""

from vlmplan.memory.blocks import UNWATCHED, Stream, Watcher
from vlmplan.memory.parameters import ParameterTable, Partition, owned_elements
from vlmplan.recipe import ZeroSettings

NORM_BYTES = 8
"""A gradient norm is taken in float64 (``get_norm_dtype`` in ``zero/utils.py``)."""
NORM_ELEMENTS = 250_000_000
"""Elements at a time under stage 3 with offload (``_constant_buffered_norm2``)."""


PARTITION, COPY, SHARD = "partition", "copy", "shard"
"""Owners of blocks: this rank's gradients, what a reduction copies, and what goes to the host."""


class BucketedGradients:
    """Gradients and buckets of one rank, in bytes, as backward hands over one gradient after another.

    ``gradients`` and ``buffers`` are what is live after an event; each event returns the most that was live during it.
    The ``watcher`` knows the block of a gradient by its ordinal.
    """

    def __init__(
        self,
        *,
        table: ParameterTable,
        zero: ZeroSettings,
        num_ranks: int,
        partition: Partition,
        element_bytes: int,
        offloads: bool = False,
        master_bytes: int = 4,
        accumulates: bool = False,
        watcher: Watcher = UNWATCHED,
    ) -> None:
        """``offloads``: gradients go to the host, as elements of ``master_bytes``."""
        self._table, self._numels, self._ends = table, table.numels, table.ends
        self._bucket_elements = zero.reduce_bucket_size
        self._num_buckets = 2 if zero.overlap_comm else 1
        self._is_contiguous = zero.contiguous_gradients or offloads
        self._partition, self._num_ranks = partition, num_ranks
        self._element_bytes, self._master_bytes, self._offloads = element_bytes, master_bytes, offloads
        self._accumulates = accumulates  # every parameter has a gradient already, to which the new one is added
        self._watcher = watcher
        self._waiting: list[int] = []
        self._num_waiting = 0
        self._owned_bytes = 0
        self._has_buffers = False
        self.gradients = 0
        self.buffers = 0

    def begin(self) -> None:
        """Allocate the bucket (two with overlap_comm): at the first gradient of a backward (``setup_buckets``)."""
        if not self._has_buffers and self._is_contiguous:
            num_bytes = self._bucket_elements * self._element_bytes
            self.buffers += self._num_buckets * num_bytes
            for number in range(self._num_buckets):
                self._watcher.make(bucket(number), num_bytes)
        self._has_buffers = True

    def add(self, ordinal: int) -> int:
        """A gradient arrives; it is counted in ``gradients`` by the caller already. Returns the peak meanwhile."""
        numel = self._numels[ordinal]
        peak = self.gradients + self.buffers
        if self._accumulates:
            self.gradients -= numel * self._element_bytes
        if self._num_waiting + numel > self._bucket_elements:
            peak = max(peak, self.reduce())
        if self._is_contiguous and numel <= self._bucket_elements:
            self.gradients -= numel * self._element_bytes  # moved into the bucket
            self._watcher.free(ordinal)
        elif self._offloads:
            self._watcher.replace(ordinal, numel * self._element_bytes)  # a copy of its own
        self._waiting.append(ordinal)
        self._num_waiting += numel
        return max(peak, self.gradients + self.buffers)

    def reduce(self) -> int:
        """All-reduce what waits and keep this rank's share. Returns the peak meanwhile."""
        if not self._waiting:
            return self.gradients + self.buffers
        copied = self._num_waiting * self._element_bytes if self._num_slices() > 1 else 0
        peak = self.gradients + self.buffers + copied
        self._watcher.pass_through([copied], Stream.REDUCTION)
        for ordinal in self._waiting:
            numel = self._numels[ordinal]
            is_apart = numel > self._bucket_elements or not self._is_contiguous
            owned = self._owned(ordinal)
            if owned and self._offloads:
                # norm in float64 and float32 cast of the slice, then the copy to the host
                peak = max(peak, self.gradients + self.buffers + owned * NORM_BYTES)
                self._watcher.pass_through([owned * NORM_BYTES], Stream.REDUCTION)
                if self._master_bytes != self._element_bytes:
                    self._watcher.pass_through([owned * self._master_bytes], Stream.REDUCTION)
            elif owned:
                if not self._owned_bytes:
                    self._owned_bytes = self._room()
                    self.gradients += self._owned_bytes
                    self._watcher.make(PARTITION, self._owned_bytes, Stream.REDUCTION)
                peak = max(peak, self.gradients + self.buffers)
            if is_apart:
                self.gradients -= numel * self._element_bytes
                self._watcher.free(ordinal)
        self._waiting.clear()
        self._num_waiting = 0
        return peak

    def end(self) -> int:
        """Reduce the rest and free the buckets; the partition's gradients stay. Returns the peak meanwhile."""
        peak = self.reduce()
        for number in range(self._num_buckets):
            self._watcher.free(bucket(number))
        self.buffers = 0
        self._has_buffers = False
        return peak

    def add_all(self, gradients: int, buffers: int) -> int:
        """Stage 1 at the accumulation boundary: every kept gradient goes through the bucket, in parameter order."""
        self.gradients, self.buffers, self._has_buffers = gradients, buffers, True
        peak = gradients + buffers
        for ordinal in range(len(self._numels)):
            peak = max(peak, self.add(ordinal))
        return max(peak, self.end())

    def _owned(self, ordinal: int) -> int:
        """Elements of the parameter inside this rank's partition."""
        end = self._ends[ordinal]
        start = end - self._numels[ordinal]
        return max(0, min(end, self._partition.end) - max(start, self._partition.start))

    def _room(self) -> int:
        """Bytes of the buffer for this rank's gradients: whole parameters that reach into its partition."""
        return owned_elements(self._table, self._partition) * self._element_bytes

    def _num_slices(self) -> int:
        """Runs of neighbouring elements with one owner: one run is reduced where it lies, several are copied."""
        size = self._partition.size
        runs = 0
        previous = -1
        for ordinal in self._waiting:
            end = self._ends[ordinal]
            first, last = (end - self._numels[ordinal]) // size, (end - 1) // size
            runs += (first != previous) + (last - first)
            previous = last
            if runs > 1:
                return runs
        return runs


def bucket(number: int) -> tuple[str, int]:
    """Owner of the block of a reduce bucket."""
    return "bucket", number


class ShardedGradients:
    """Stage 3: gradients pass through the bucket into this rank's shards, whose buffer exists from init on.

    Source: ``reduce_independent_p_g_buckets_and_remove_grads`` and ``__reduce_and_partition_ipg_grads`` in
    ``deepspeed/runtime/zero/stage3.py``; ``reduce_scatter_coalesced`` interleaves the bucket into a second buffer.
    With ``offloads`` the shards are on the host: each comes back to the GPU for its norm, in float64
    (``partition_grads``, ``_offload_grad_partition_at_boundary``).
    """

    def __init__(
        self,
        *,
        table: ParameterTable,
        zero: ZeroSettings,
        num_ranks: int,
        element_bytes: int,
        offloads: bool = False,
        master_bytes: int = 4,
        watcher: Watcher = UNWATCHED,
    ) -> None:
        """``offloads``: gradients go to the host, as elements of ``master_bytes``."""
        self._numels, self._num_ranks, self._element_bytes = table.numels, num_ranks, element_bytes
        self._offloads, self._master_bytes, self._watcher = offloads, master_bytes, watcher
        self._bucket_elements, self._is_contiguous = zero.reduce_bucket_size, zero.contiguous_gradients
        self._waiting: list[int] = []
        self._num_waiting = 0
        self._apart = 0
        self.gradients = 0
        self.buffers = 0  # the bucket itself belongs to the model states: it is never freed

    def begin(self) -> None:
        """Nothing to allocate."""

    def add(self, ordinal: int) -> int:
        """A gradient arrives; it is counted in ``gradients`` by the caller already. Returns the peak meanwhile."""
        numel = self._numels[ordinal]
        peak = self.gradients
        if self._waiting and self._num_waiting + numel > self._bucket_elements:
            peak = max(peak, self.end())
        num_bytes = numel * self._element_bytes
        if self._is_contiguous and self._num_waiting + numel <= self._bucket_elements:
            self.gradients -= num_bytes
            self._watcher.free(ordinal)
        else:
            self._apart += num_bytes
        self._waiting.append(ordinal)
        self._num_waiting += numel
        return max(peak, self.gradients)

    def end(self) -> int:
        """Reduce-scatter what waits into the shards. Returns the peak meanwhile."""
        is_in_place = len(self._waiting) == 1 and self._numels[self._waiting[0]] % self._num_ranks == 0
        copied = 0 if is_in_place else self._num_waiting * self._element_bytes
        peak = self.gradients + copied
        self._watcher.make(COPY, copied, Stream.REDUCTION)
        if self._offloads and self._waiting:
            peak += max(self._offload(ordinal) for ordinal in self._waiting)
        self._watcher.free(COPY)
        for ordinal in self._waiting:
            self._watcher.free(ordinal)
        self.gradients -= self._apart
        self._waiting.clear()
        self._num_waiting = self._apart = 0
        return peak

    def _offload(self, ordinal: int) -> int:
        """This rank's shard on the GPU, beside it its norm's elements and then the master's. Returns the most bytes."""
        numel = -(-self._numels[ordinal] // self._num_ranks)
        shard, norm = numel * self._element_bytes, min(numel, NORM_ELEMENTS) * NORM_BYTES
        cast = numel * self._master_bytes if self._master_bytes != self._element_bytes else 0
        self._watcher.make(SHARD, shard, Stream.REDUCTION)
        self._watcher.pass_through([norm], Stream.REDUCTION)
        self._watcher.pass_through([cast], Stream.REDUCTION)
        self._watcher.free(SHARD)
        return shard + max(norm, cast)
