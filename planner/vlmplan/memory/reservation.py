"""How much memory torch reserves: every storage of a run's first optimizer steps, in order, through its allocator.

The model's storages come from a ``LoggingTape``; what the engine allocates follows the same simulations as the
timeline, block by block and on DeepSpeed's streams. The first step differs: the optimizer's states appear at its end
and take the places that activations left, and ZeRO-3 does not know the order of modules yet.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain

from vlmplan.architecture.storage_log import EngineEvent, Operation, Operations
from vlmplan.architecture.trace import Event, GradientTaken, Trace, WeightUse
from vlmplan.memory.allocator import SMALL_SEGMENT_BYTES, Block, CachingAllocator
from vlmplan.memory.blocks import BlockLog, EngineBlocks, Stream
from vlmplan.memory.buckets import PARTITION
from vlmplan.memory.building import Building
from vlmplan.memory.components import Components
from vlmplan.memory.engines import secondary_shard_bytes
from vlmplan.memory.gathering import notify
from vlmplan.memory.parameters import ParameterTable, fullest_rank
from vlmplan.memory.replay import KeptGradients
from vlmplan.memory.stepping import Stepping
from vlmplan.memory.timeline import (
    boundary_reduction,
    cached_casts,
    gathered_weights,
    gathers_weights,
    gradient_store,
)
from vlmplan.recipe import Recipe

NUM_STEPS = 2
EARLIER = "earlier partition"
"""Owner of the gradients that stage 2 keeps from earlier micro batches."""

Changes = list[tuple[int, int]]
"""What a ``BlockLog`` wrote down."""
MicroBatch = tuple[Trace, Operations]
"""A trace of a ``LoggingTape`` and its expansion."""


class Reservation:
    """One replay on the fullest rank. ``trace`` is of a ``LoggingTape``, ``operations`` its expansion.

    ``micro_batches``: those of a run whose samples differ in length, in order, all of the same weights; without them
    every micro batch is that of ``trace``.
    """

    def __init__(
        self,
        table: ParameterTable,
        trace: Trace,
        operations: Operations,
        recipe: Recipe,
        *,
        num_ranks: int,
        workspaces: Sequence[int] = (),
        capacity_bytes: int | None = None,
        micro_batches: Sequence[MicroBatch] = (),
    ) -> None:
        self.allocator = CachingAllocator(capacity_bytes=capacity_bytes)
        self._table, self._trace, self._recipe = table, trace, recipe
        self._operations, self._num_ranks, self._workspaces = operations, num_ranks, workspaces
        self._count = min(recipe.grad_accum, 2)
        self._micro_batches = micro_batches or [(trace, operations)] * (NUM_STEPS * self._count)
        self._gatherings: dict[tuple[int, bool], list[Changes]] = {}
        """By the identity of a trace, and whether it is the first."""
        self._gatherings_by_uses: dict[Hashable, list[Changes]] = {}
        self._rank = fullest_rank(table, num_ranks) if recipe.zero_stage in (1, 2) else 0
        self._gathers = gathers_weights(recipe, num_ranks)
        has_streams = recipe.zero_stage in (1, 2, 3) and recipe.zero.overlap_comm
        self._blocks = EngineBlocks(self.allocator, has_streams=has_streams)
        self._gather_stream = Stream.GATHER if has_streams else Stream.DEFAULT
        self._storages: dict[int, Block] = {}
        self._gathered: dict[int, Block] = {}
        self._left: Changes = []
        """What gathered weights leave to be freed when the next micro batch begins."""

    def run(self) -> None:
        """Load, init and the optimizer steps. Raises OutOfDeviceMemory."""
        Building(self._table, self._recipe, self._num_ranks, allocator=self.allocator, blocks=self._blocks).run()
        for num_bytes in self._workspaces:
            self.allocator.allocate(num_bytes)
        if self._gathers:
            self._make_persistent()
        self._second_shards(trained=False)
        stepping = Stepping(self._table, self._recipe, self._num_ranks, self._rank, self._blocks)
        count = self._count
        self._step(stepping, self._micro_batches[:count], is_first=True)
        unchanging: set[Hashable] = set()
        """States, and the micro batches of a step that leaves each as it is: to run that again would change nothing."""
        for start in range(count, len(self._micro_batches) - count + 1, count):
            micro_batches = self._micro_batches[start : start + count]
            before = self._state()
            step = before, tuple(id(operations) for _, operations in micro_batches)
            if step not in unchanging:
                self._step(stepping, micro_batches, is_first=False)
                if self._state() == before:
                    unchanging.add(step)

    def _step(self, stepping: Stepping, micro_batches: Sequence[MicroBatch], *, is_first: bool) -> None:
        """One optimizer step, of one or more micro batches."""
        copies = self._second_shards(trained=True)
        for number, (self._trace, self._operations) in enumerate(micro_batches):
            gathering = self._gathering(is_first=is_first and number == 0)
            self._micro_batch(gathering, accumulates=number > 0, is_last=number == len(micro_batches) - 1)
        stepping.step(is_first=is_first)
        for block in copies:
            self.allocator.free(block)

    def _state(self) -> Hashable:
        """All that a step after the first depends on, beside its micro batches: free blocks, and those that may go.

        Every new segment changes it, as addresses are not used twice.
        """
        gathered = [(handle, block.address, block.num_bytes) for handle, block in self._gathered.items()]
        return self.allocator.state(), self._blocks.state(), tuple(gathered), tuple(self._left)

    def _second_shards(self, *, trained: bool) -> list[Block]:
        """Copies of shards among neighbours (hpZ): those of trained weights go with every step."""
        if self._recipe.hpz == 1 or self._recipe.zero_stage != 3:
            return []
        return [
            self.allocator.allocate(secondary_shard_bytes(entry.parameter, self._recipe, self._num_ranks))
            for entry in self._table.entries
            if entry.parameter.requires_grad is trained
        ]

    def _make_persistent(self) -> None:
        """Small weights are whole from their first use on."""
        if self._num_ranks == 1:
            return
        for entry in self._table.entries:
            if entry.parameter.numel <= self._recipe.zero.stage3_param_persistence_threshold:
                self._blocks.keep(entry.parameter.numel * entry.parameter.dtype.num_bytes, Stream.GATHER)

    def _micro_batch(self, gathering: list[Changes], *, accumulates: bool, is_last: bool) -> None:
        changes = iter(gathering)
        self._store = gradient_store(
            self._table,
            self._recipe,
            self._num_ranks,
            self._rank,
            accumulates=accumulates,
            watcher=self._blocks,
            is_last=is_last,
        )
        self._change(self._left)
        casts = [self.allocator.allocate(num_bytes) for num_bytes in cached_casts(self._table, self._recipe)]
        self._replay(self._operations.forward, changes)
        for block in casts:
            self.allocator.free(block)
        self._replay(self._operations.backward, changes)
        self._store.end()
        if self._gathers:  # what backward leaves, and what only the next micro batch gives up
            self._change(next(changes))
            self._left = next(changes)
        self._replay(self._operations.after, changes)
        if not is_last:
            self._blocks.rename(PARTITION, EARLIER)
        elif self._blocks.has(EARLIER):  # the new partition is added to it
            self._blocks.free(PARTITION)
            self._blocks.rename(EARLIER, PARTITION)
        if is_last:
            self._reduce_at_boundary()
        for block in self._storages.values():  # the batch
            self.allocator.free(block)
        self._storages.clear()

    def _gathering(self, *, is_first: bool) -> list[Changes]:
        """The blocks of whole weights at each event about them, at the end of backward, and after that."""
        if not self._gathers:
            return []
        key = id(self._trace), is_first
        if key not in self._gatherings:
            uses = _weight_uses(self._trace), is_first
            if uses not in self._gatherings_by_uses:
                self._gatherings_by_uses[uses] = self._new_gathering(is_first=is_first)
            self._gatherings[key] = self._gatherings_by_uses[uses]
        return self._gatherings[key]

    def _new_gathering(self, *, is_first: bool) -> list[Changes]:
        log = BlockLog()
        gathered = gathered_weights(self._trace, self._recipe, self._num_ranks, is_first=is_first, watcher=log)
        assert gathered is not None
        changes: list[Changes] = []
        for operation in chain(self._operations.forward, self._operations.backward):
            if isinstance(operation, EngineEvent) and not isinstance(operation.event, GradientTaken):
                notify(gathered, operation.event, operation.run)
                changes.append(log.taken())
        gathered.end_backward()
        changes.append(log.taken())
        log.free_all()
        return [*changes, log.taken()]

    def _replay(self, operations: Iterable[Operation], gathering: Iterator[Changes]) -> None:
        allocate, free, storages = self.allocator.allocate, self.allocator.free, self._storages
        for operation in operations:
            if not isinstance(operation, EngineEvent):
                handle, num_bytes = operation
                if num_bytes:
                    storages[handle] = allocate(num_bytes)
                else:
                    free(storages.pop(handle))
            elif isinstance(operation.event, GradientTaken):
                self._take(operation, operation.event)
            elif self._gathers and (changes := next(gathering)):
                self._change(changes)

    def _change(self, changes: Changes) -> None:
        allocator, gathered, stream = self.allocator, self._gathered, self._gather_stream
        for handle, num_bytes in changes:
            if num_bytes:
                gathered[handle] = allocator.allocate(num_bytes, stream)
            else:
                allocator.free(gathered.pop(handle))

    def _take(self, operation: EngineEvent, event: GradientTaken) -> None:
        """The engine gets a gradient: it stays where it is, is added to an earlier one, or moves into a bucket."""
        store = self._store
        store.begin()
        store.gradients += event.num_bytes
        ordinal = self._table.ordinal(event.parameter, operation.run.layer)
        block = self._storages.pop(operation.handle, None)
        if block is not None:
            if self._blocks.has(ordinal):
                self.allocator.free(block)
            else:
                self._blocks.adopt(ordinal, block)
        store.add(ordinal)

    def _reduce_at_boundary(self) -> None:
        """Stages 0 and 1 reduce the kept gradients before the step."""
        store = self._store
        if self._recipe.zero_stage in (0, 1) and isinstance(store, KeptGradients):
            before = Components(gradients=store.gradients, communication_buffers=store.buffers)
            boundary_reduction(self._table, self._recipe, self._num_ranks, self._rank, before, self._blocks)


def _weight_uses(trace: Trace) -> Hashable:
    """All that gathering depends on: which module uses its weights when. The same for samples of other lengths."""
    sections = [(key, _uses(section.forward), _uses(section.backward)) for key, section in trace.sections.items()]
    return tuple(trace.schedule), tuple(sections)


def _uses(events: Iterable[Event]) -> Hashable:
    return tuple((type(event), event) for event in events if isinstance(event, WeightUse))


def peak_reserved_bytes(
    table: ParameterTable,
    trace: Trace,
    operations: Operations,
    recipe: Recipe,
    *,
    num_ranks: int,
    workspaces: Sequence[int] = (),
    capacity_bytes: int | None = None,
    micro_batches: Sequence[MicroBatch] = (),
) -> int:
    """``torch.cuda.max_memory_reserved`` of a run. Raises OutOfDeviceMemory where ``capacity_bytes`` do not do.

    ``operations`` may leave out the storages of the small pool.
    """
    replay = Reservation(
        table,
        trace,
        operations,
        recipe,
        num_ranks=num_ranks,
        workspaces=workspaces,
        capacity_bytes=capacity_bytes,
        micro_batches=micro_batches,
    )
    replay.run()
    # The model's small storages pack well into segments of their own.
    most = max((one.small_peak_bytes for _, one in micro_batches), default=operations.small_peak_bytes)
    small = -(-most // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
    return replay.allocator.peak_reserved_bytes + small


__all__ = ["MicroBatch", "Reservation", "peak_reserved_bytes"]
