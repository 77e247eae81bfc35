"""How much memory torch reserves: every storage of a run's first optimizer steps, in order, through its allocator.

The model's storages come from a ``LoggingTape``; what the engine allocates follows the same simulations as the
timeline, block by block and on DeepSpeed's streams. The first step differs: the optimizer's states appear at its end
and take the places that activations left, and ZeRO-3 does not know the order of modules yet.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.architecture.storage_log import EngineEvent, Operation, Operations
from vlmplan.architecture.trace import GradientTaken, KeptCast, LastAdapter, Run, Trace, WeightUse
from vlmplan.engines.choice import engine_of
from vlmplan.engines.coordinator.module_order import SmallWeights
from vlmplan.engines.events import Stream
from vlmplan.engines.parameters import ParameterTable
from vlmplan.memory.allocator import Block, CachingAllocator, OutOfDeviceMemory, TooMuchReserved
from vlmplan.memory.blocks import BlockLog, EngineBlocks
from vlmplan.memory.evaluation import KeptOutputs, lacked_among, order_of
from vlmplan.memory.gathered_blocks import Changes, GatheredBlocks
from vlmplan.recipe import Recipe

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.gathered_weights import GatheredWeights

NUM_STEPS = 3
"""The first makes the states, the second finds other places beside them, and the third those that the second has left.
Three more reserve no more in any recorded rehearsal."""

NO_CHANGES: Changes = []
FIRST_MICRO_BATCHES = (SmallWeights.COME_AND_GO, SmallWeights.STAY)
"""What small weights do in the first micro batches of the first step under ZeRO-3, while none is whole before: while
the order of modules is recorded they are released as all others are (``release_sub_module``); from the third on, and
in all later steps, they are whole."""
MicroBatch = tuple[Trace, Operations]
"""A trace of a ``LoggingTape`` and its expansion."""
EvaluatedOperations = tuple[Sequence[MicroBatch], KeptOutputs, Sequence[int]]
"""The forwards of a batch of evaluation, what is kept of it, and what is there when the last token is generated."""


class ReservedPeak(NamedTuple):
    """What torch reserves at most. Where it ``was_short`` of room meanwhile, it gave segments back, and would have
    reserved more with more room."""

    total_bytes: int
    was_short: bool


class ReservedPeaks:
    """Peaks of reserved bytes, each replayed once for all GPUs that have room for it: a capacity changes nothing of a
    replay that never reserves more."""

    def __init__(self) -> None:
        self._unlimited: dict[Hashable, ReservedPeak] = {}
        self._short: dict[tuple[Hashable, int | None], ReservedPeak] = {}
        """Of replays that were short of room, by the setup and the capacity."""

    def total_bytes(
        self, key: Hashable, replay: Callable[[int | None], ReservedPeak], capacity_bytes: int | None
    ) -> int:
        """What ``replay`` of the capacity gives, whose setup is ``key``. Raises OutOfDeviceMemory as it does."""
        known = self._known(key, capacity_bytes) or self._noted(key, capacity_bytes, replay(capacity_bytes))
        return known.total_bytes

    def stays_within(
        self, key: Hashable, replay: Callable[[int | None, int | None], ReservedPeak], capacity_bytes: int, most: int
    ) -> bool:
        """Whether a replay of the capacity reserves no more than ``most``; it ends as soon as it does."""
        known = self._known(key, capacity_bytes)
        if known is None:
            try:
                known = self._noted(key, capacity_bytes, replay(capacity_bytes, most))
            except (OutOfDeviceMemory, TooMuchReserved):
                return False
        return known.total_bytes <= most

    def _known(self, key: Hashable, capacity_bytes: int | None) -> ReservedPeak | None:
        known = self._unlimited.get(key)
        if known is not None and (capacity_bytes is None or known.total_bytes <= capacity_bytes):
            return known
        return self._short.get((key, capacity_bytes))

    def _noted(self, key: Hashable, capacity_bytes: int | None, found: ReservedPeak) -> ReservedPeak:
        if found.was_short:
            self._short[key, capacity_bytes] = found
        else:
            self._unlimited[key] = found
        return found


def num_replayed(recipe: Recipe) -> int:
    """Micro batches of a step that are replayed: the first, the last, and one for all between them."""
    return min(recipe.grad_accum, 3)


def alike(micro_batch: MicroBatch, recipe: Recipe) -> list[MicroBatch]:
    """The micro batches of a run in which all are like this one."""
    return [micro_batch] * (NUM_STEPS * num_replayed(recipe))


class Lasting(NamedTuple):
    """Blocks that stay: batches that wait from before the first step, and libraries' workspaces, which the first
    forward makes with its first matrix product, when its own batch is there."""

    batches: Sequence[int] = ()
    workspaces: Sequence[int] = ()


NOTHING_LASTING = Lasting()


class Reservation:
    """One replay on ``rank``; None: where the optimizer step takes most. ``micro_batches``: those of the run in order,
    all of the same weights; ``alike`` makes them of one. ``lasting``: blocks that stay.
    """

    def __init__(
        self,
        table: ParameterTable,
        recipe: Recipe,
        micro_batches: Sequence[MicroBatch],
        *,
        num_ranks: int,
        rank: int | None = None,
        lasting: Lasting = NOTHING_LASTING,
        allocator: CachingAllocator | None = None,
        evaluated: EvaluatedOperations | None = None,
        room_bytes: int | None = None,
        gathered_blocks: GatheredBlocks | None = None,
    ) -> None:
        """``allocator``: a new one; without limits where it is None. ``gathered_blocks``: those of other replays of the
        same table."""
        self._evaluated = evaluated
        self.allocator = allocator or CachingAllocator()
        self._table, self._recipe, self._num_ranks, self._lasting = table, recipe, num_ranks, lasting
        self._micro_batches, self._count = micro_batches, num_replayed(recipe)
        self._trace, self._operations = micro_batches[0]
        self._gathered_blocks = GatheredBlocks() if gathered_blocks is None else gathered_blocks
        has_streams = engine_of(table, recipe, num_ranks=num_ranks, rank=0).has_streams
        self._blocks = EngineBlocks(self.allocator, has_streams=has_streams)
        self._engine = engine_of(
            table, recipe, num_ranks=num_ranks, rank=rank, sink=self._blocks, room_bytes=room_bytes
        )
        self._gather_stream = Stream.GATHER if has_streams else Stream.DEFAULT
        self._has_run_forward = False
        self._storages: dict[int, Block] = {}
        self._gathered: dict[int, Block] = {}
        self._casts: list[Block] = []
        self._kept: list[Block] = []
        """What the training loop holds of the micro batch before."""
        self._left: Changes = []
        """What gathered weights leave to be freed when the step or the next micro batch begins."""

    def run(self) -> None:
        """Load, init and the optimizer steps. Raises OutOfDeviceMemory, and TooMuchReserved."""
        self._engine.load(is_on_cpu=False)
        self._engine.build()
        for num_bytes in self._lasting.batches:
            self.allocator.allocate(num_bytes)
        count = self._count
        self._step(self._micro_batches[:count], is_first=True)
        unchanging: set[Hashable] = set()
        """States, and the micro batches of a step that leaves each as it is: to run that again would change nothing."""
        for start in range(count, len(self._micro_batches) - count + 1, count):
            micro_batches = self._micro_batches[start : start + count]
            before = self._state()
            step = before, tuple(id(operations) for _, operations in micro_batches)
            if step not in unchanging:
                self._step(micro_batches, is_first=False)
                if self._state() == before:
                    unchanging.add(step)
        if self._evaluated is not None:
            self._evaluate(*self._evaluated)

    def peak_reserved(self) -> ReservedPeak:
        """``torch.cuda.max_memory_reserved`` of the run. Raises OutOfDeviceMemory where the capacity does not do."""
        self.run()
        return ReservedPeak(self.allocator.peak_reserved_bytes, self.allocator.was_short)

    def _evaluate(self, passes: Sequence[MicroBatch], kept: KeptOutputs, last_token: Sequence[int]) -> None:
        """A first batch, which finds what training has left, and the one that finds most of what is kept. Batches
        between them are left out: the allocator gives back what they leave unused before it runs out."""
        log = BlockLog()
        gathered = self._engine.gathered_weights(order_of(passes[0][0], self._trace), log)
        if gathered is not None:
            gathered.begin_evaluation(secondary_among=lacked_among(self._engine))
        for sizes in ([], kept.held):
            held = [self.allocator.allocate(num_bytes) for num_bytes in sizes if num_bytes]
            for _, operations in passes:
                changes = iter(_forward_changes(gathered, operations, log))
                self._change(next(changes, NO_CHANGES))
                self._replay_forward(operations, changes)
                for block in self._storages.values():
                    self.allocator.free(block)
                self._storages.clear()
            for block in held:
                self.allocator.free(block)
        self._engine.end_evaluation()
        for sizes in (kept.moved, last_token):
            for block in [self.allocator.allocate(num_bytes) for num_bytes in sizes if num_bytes]:
                self.allocator.free(block)

    def _step(self, micro_batches: Sequence[MicroBatch], *, is_first: bool) -> None:
        """One optimizer step, of one or more micro batches."""
        self._engine.begin_step()
        for number, (trace, operations) in enumerate(micro_batches):
            self._trace, self._operations = trace, operations
            if is_first and number == 2 and self._engine.gathers_weights:
                self._free_left()
                self._engine.use_first()
            gathering = self._gathering(number if is_first else len(FIRST_MICRO_BATCHES))
            self._micro_batch(gathering, accumulates=number > 0, is_last=number == len(micro_batches) - 1)
        self._free_left()
        self._engine.step(is_first=is_first)

    def _state(self) -> Hashable:
        """All that a step after the first depends on, beside its micro batches: free blocks, and those that may go.

        Every new segment changes it, as addresses are not used twice.
        """
        gathered = [(handle, block.address, block.num_bytes) for handle, block in self._gathered.items()]
        return self.allocator.state(), self._blocks.state(), tuple(gathered), tuple(self._left)

    def _micro_batch(self, gathering: Sequence[Changes], *, accumulates: bool, is_last: bool) -> None:
        engine, changes = self._engine, iter(gathering)
        engine.begin_micro_batch(accumulates=accumulates, is_last=is_last)
        self._free_left()
        for block in self._kept:
            self.allocator.free(block)
        self._kept.clear()
        self._replay_forward(self._operations, changes)
        self._replay_backward(changes)
        engine.end_backward()
        self._change(next(changes, NO_CHANGES))
        self._left = next(changes, NO_CHANGES)
        if is_last:
            engine.reduce_gradients()
        self._replay(self._operations.after, changes)
        self._end_batch()

    def _end_batch(self) -> None:
        """What is left is the batch, and behind it what the training loop holds until the next micro batch, which its
        trace begins with."""
        operations = self._operations
        of_batch = {handle for handle, _ in operations.batch}
        for handle, block in self._storages.items():
            if handle in of_batch or not self._recipe.keeps_graph:
                self.allocator.free(block)
            else:
                self._kept.append(block)
        self._storages.clear()

    def _free_left(self) -> None:
        self._change(self._left)
        self._left = []

    def _gathering(self, number: int) -> Sequence[Changes]:
        """The blocks of whole weights at each event about them, at the end of backward, and after that, in the micro
        batch of this ``number`` of the run, from 0 on."""
        if not self._engine.gathers_weights:
            return []
        small = FIRST_MICRO_BATCHES[number] if number < len(FIRST_MICRO_BATCHES) else SmallWeights.WHOLE
        return self._gathered_blocks.changes(
            self._engine, self._trace, self._operations, is_first=number == 0, small=small
        )

    def _replay_forward(self, operations: Operations, gathering: Iterator[Changes]) -> None:
        ends = operations.forward_ends
        self._replay(operations.forward[: ends[0]], gathering)
        self._begin_first_forward()
        if self._engine.follows_layers:
            self._engine.begin_forward(self._trace)
            self._replay_layers(operations.forward, operations.schedule[1:], ends, is_backward=False)
            self._engine.end_forward()
        else:
            self._replay(islice(operations.forward, ends[0], None), gathering)
        for block in self._casts:  # forward leaves autocast
            self.allocator.free(block)
        self._casts.clear()

    def _begin_first_forward(self) -> None:
        """What the first forward of all does behind the batch."""
        if self._has_run_forward:
            return
        self._has_run_forward = True
        for num_bytes in self._lasting.workspaces:
            self.allocator.allocate(num_bytes)
        if not self._engine.gathers_weights:
            self._engine.use_first()

    def _replay_backward(self, gathering: Iterator[Changes]) -> None:
        operations = self._operations
        if not self._engine.follows_layers:
            self._change(next(gathering, NO_CHANGES))  # for the modules around all others
            self._replay(operations.backward, gathering)
            return
        self._engine.begin_backward()
        ends = (0, *operations.backward_ends)
        self._replay_layers(operations.backward, operations.schedule[::-1], ends, is_backward=True)

    def _replay_layers(
        self, operations: Sequence[Operation], schedule: Sequence[Run], ends: Sequence[int], *, is_backward: bool
    ) -> None:
        """``ends``: where the first run of the ``schedule`` begins, and where each ends."""
        for run, (start, end) in zip(schedule, pairwise(ends), strict=True):
            self._engine.enter(run, is_backward=is_backward)
            self._replay(operations[start:end], iter(()))
            self._engine.leave(run, is_backward=is_backward)

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
            elif isinstance(operation.event, KeptCast):
                self._casts.append(allocate(operation.event.num_bytes))
            elif isinstance(operation.event, LastAdapter):
                self._engine.begin_last_adapter(operation.run)
            else:
                self._change(next(gathering, NO_CHANGES))

    def _change(self, changes: Changes) -> None:
        allocator, gathered, stream = self.allocator, self._gathered, self._gather_stream
        for handle, num_bytes in changes:
            if num_bytes:
                gathered[handle] = allocator.allocate(num_bytes, stream)
            else:
                allocator.free(gathered.pop(handle))

    def _take(self, operation: EngineEvent, event: GradientTaken) -> None:
        ordinal = self._table.ordinal(event.parameter, operation.run.layer)
        self._engine.expect_gradient()
        block = self._storages.pop(operation.handle, None)
        if block is not None:
            self._blocks.hand_over(ordinal, block)
        self._engine.take_part(ordinal, event.part)


def _forward_changes(gathered: "GatheredWeights | None", operations: Operations, log: BlockLog) -> Iterator[Changes]:
    """The blocks of whole weights before a forward that no backward follows, and at each event about them."""
    if gathered is None:
        return
    from vlmplan.engines.coordinator.gathered_weights import notify

    gathered.begin_forward()
    yield log.taken()
    for operation in operations.forward:
        if isinstance(operation, EngineEvent) and isinstance(operation.event, WeightUse):
            notify(gathered, operation.event, operation.run)
            yield log.taken()


__all__ = ["MicroBatch", "Reservation"]
