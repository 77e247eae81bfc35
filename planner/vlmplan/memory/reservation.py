"""How much memory torch reserves: every storage of two optimizer steps, in order, through its caching allocator.

The model's storages come from a ``LoggingTape``; what the engine allocates follows the same simulations as the
timeline, in blocks of the sizes that the engine uses. Two steps, because the optimizer's states appear at the end of
the first one and take the places that activations left.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from vlmplan.architecture.storage_log import EngineEvent, Operation, Operations
from vlmplan.architecture.trace import Drop, Fetch, GradientTaken, Hold, Release, Run, Trace
from vlmplan.memory.allocator import SMALL_SEGMENT_BYTES, Block, CachingAllocator
from vlmplan.memory.components import Components
from vlmplan.memory.engines import ModelStates, secondary_shard_bytes
from vlmplan.memory.gathering import GatheredWeights
from vlmplan.memory.parameters import ParameterTable, fullest_rank, partition_size, sub_group_elements
from vlmplan.memory.replay import KeptGradients
from vlmplan.memory.timeline import (
    arriving_bytes,
    boundary_reduction,
    cached_casts,
    gathered_weights,
    gathers_weights,
    gradient_store,
    model_states,
)
from vlmplan.recipe import Offload, OptimizerKind, Recipe

NUM_STEPS = 2


@dataclass(frozen=True, slots=True)
class EngineBlocks:
    """Sizes of what an engine allocates: at init, at the first step, and in every step for a moment."""

    flat_weights: Sequence[int]
    at_start: Sequence[int]
    init_transient: int
    states: Sequence[int]
    step_transients: Sequence[int]


def engine_blocks(table: ParameterTable, recipe: Recipe, states: ModelStates, num_ranks: int) -> EngineBlocks:
    """Plain PyTorch and stage 0 work weight by weight, stages 1 and 2 on a flat partition, stage 3 on sub-groups."""
    start, resident, step = states.at_start, states.resident, states.step_peak
    is_flat = recipe.zero_stage in (1, 2, 3)
    flat = start.weights - (table.frozen_bytes if recipe.zero_stage in (1, 2) else 0)
    numels = _flat_numels(table, recipe, num_ranks) if is_flat else table.numels

    def cut(num_bytes: int, pieces: int = 1) -> list[int]:
        return [num_bytes * numel // sum(numels) // pieces for numel in numels for _ in range(pieces)]

    moments = 2 if recipe.optimizer is OptimizerKind.ADAMW else 1
    later = resident.optimizer_states - start.optimizer_states
    passing = step.temporaries
    return EngineBlocks(
        flat_weights=[flat] if is_flat else [],
        at_start=[*cut(start.optimizer_states), start.gradients, start.communication_buffers],
        init_transient=max(0, states.init_peak.total - start.total),
        states=cut(later, moments),
        step_transients=_flat_step(recipe, passing, max(numels)) if is_flat else cut(passing),
    )


def _flat_numels(table: ParameterTable, recipe: Recipe, num_ranks: int) -> list[int]:
    """Elements of each flat buffer of master weights or of a moment."""
    if recipe.zero_stage != 3:
        return [partition_size(table.num_trained, num_ranks)]
    return sub_group_elements(table.numels, num_ranks, recipe.zero.sub_group_size)


def _flat_step(recipe: Recipe, num_bytes: int, numel: int) -> list[int]:
    """The step's transients on a buffer of ``numel`` elements: the flattened gradients and their cast to the master
    type (``flatten(...).to(...)``), or that and what the update adds."""
    flat, cast = numel * recipe.trained_dtype.num_bytes, numel * recipe.master_dtype.num_bytes
    first = min(num_bytes, flat if num_bytes == flat + cast else cast)
    return [first, num_bytes - first]


class Holding:
    """Bytes that an engine holds in blocks of its own: what is added is a new block, the newest go first."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._blocks: list[tuple[int, Block]] = []
        self.num_bytes = 0

    def set(self, num_bytes: int) -> None:
        while self.num_bytes > num_bytes:
            size, block = self._blocks.pop()
            self._allocator.free(block)
            self.num_bytes -= size
        if num_bytes > self.num_bytes:
            self._blocks.append((num_bytes - self.num_bytes, self._allocator.allocate(num_bytes - self.num_bytes)))
            self.num_bytes = num_bytes


class Reservation:
    """One replay on the fullest rank. ``trace`` is of a ``LoggingTape``, ``operations`` its expansion."""

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
    ) -> None:
        self.allocator = CachingAllocator(capacity_bytes=capacity_bytes)
        self._table, self._trace, self._recipe = table, trace, recipe
        self._operations, self._num_ranks, self._workspaces = operations, num_ranks, workspaces
        self._rank = fullest_rank(table, num_ranks) if recipe.zero_stage in (1, 2) else 0
        self._states = model_states(table, recipe, num_ranks, self._rank)
        self._gathers = gathers_weights(recipe, num_ranks)
        self._held = Holding(self.allocator)
        self._gathered = Holding(self.allocator)
        self._kept: list[Block] = []
        self._copies: list[Block] = []
        self._storages: dict[int, Block] = {}

    def run(self) -> None:
        """Load, init and ``NUM_STEPS`` optimizer steps. Raises OutOfDeviceMemory."""
        blocks = engine_blocks(self._table, self._recipe, self._states, self._num_ranks)
        self._load(blocks)
        for num_bytes in self._workspaces:
            self.allocator.allocate(num_bytes)
        for step in range(NUM_STEPS):
            for micro_batch in range(min(self._recipe.grad_accum, 2)):
                is_last = micro_batch == min(self._recipe.grad_accum, 2) - 1
                self._micro_batch(accumulates=micro_batch > 0, is_last=is_last)
            self._step(blocks, is_first=step == 0)

    def _load(self, blocks: EngineBlocks) -> None:
        """Weights come one by one; engines with flat buffers copy the trained ones there and empty the cache."""
        allocator = self.allocator
        moved: list[Block] = []
        for entry in self._table.entries:
            parameter = entry.parameter
            arriving = arriving_bytes(parameter, self._recipe)
            if arriving:
                whole = allocator.allocate(arriving)
                allocator.allocate(parameter.num_bytes)
                allocator.free(whole)
            elif self._recipe.zero_stage != 3:
                block = allocator.allocate(parameter.num_bytes)
                if parameter.requires_grad:
                    moved.append(block)
        if self._recipe.zero_stage in (1, 2, 3):
            for num_bytes in blocks.flat_weights:
                allocator.allocate(num_bytes)
            if self._recipe.zero_stage == 3:
                self._pass(self._table.largest_module_bytes)  # each module is whole before it is cut up
            self._free(moved)
            allocator.empty_cache()
        for num_bytes in blocks.at_start:
            if num_bytes:
                allocator.allocate(num_bytes)
        self._copy_weights()
        self._pass(blocks.init_transient)

    def _copy_weights(self) -> None:
        """Second shards of trained weights (hpZ), which go with every step; those of frozen ones are flat weights."""
        if self._states.copies.total and not self._copies:
            self._copies = [
                self.allocator.allocate(secondary_shard_bytes(entry.parameter, self._recipe, self._num_ranks))
                for entry in self._table.entries
                if entry.parameter.requires_grad
            ]

    def _micro_batch(self, *, accumulates: bool, is_last: bool) -> None:
        recipe = self._recipe
        gathered = iter(self._gathered_bytes)
        self._start_gradients(accumulates)
        self._copy_weights()
        casts = [self.allocator.allocate(num_bytes) for num_bytes in cached_casts(self._table, recipe)]
        self._replay(self._operations.forward, gathered)
        self._free(casts)
        self._replay(self._operations.backward, gathered)
        self._settle(self._store.end())
        for live, _ in gathered:  # the last one, after backward's leftovers are gone
            self._gathered.set(live)
        self._replay(self._operations.after, gathered)
        if self._earlier:
            self._held.set(self._earlier)  # the new partition is added to the earlier one
        if is_last:
            self._reduce_at_boundary()
        self._free(list(self._storages.values()))  # the batch
        self._storages.clear()

    def _start_gradients(self, accumulates: bool) -> None:
        self._store = gradient_store(self._table, self._recipe, self._num_ranks, self._rank, accumulates=accumulates)
        self._earlier = self._held.num_bytes if accumulates and self._recipe.zero_stage == 2 else 0
        if self._kept and not isinstance(self._store, KeptGradients):
            self._free(self._kept)
            self._held.set(self._store.gradients)

    @cached_property
    def _gathered_bytes(self) -> list[tuple[int, int]]:
        """(bytes of whole weights after, the most during) each event about weights, and at the end of backward; every
        micro batch is the same."""
        gathered = gathered_weights(self._trace, self._recipe, self._num_ranks)
        if gathered is None:
            return []
        operations = self._operations
        events = (
            operation
            for operation in chain(operations.forward, operations.backward)
            if isinstance(operation, EngineEvent) and not isinstance(operation.event, GradientTaken)
        )
        moments = [_gathering(gathered, event, run) for event, run, _ in events]
        gathered.end_backward()
        return [*moments, (gathered.live_bytes, gathered.live_bytes)]

    def _replay(self, operations: Iterable[Operation], gathered: Iterator[tuple[int, int]]) -> None:
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
            elif self._gathers:
                live, peak = next(gathered)
                self._gathered.set(live)
                self._pass(peak - live)

    def _take(self, operation: EngineEvent, event: GradientTaken) -> None:
        """The engine gets a gradient: it stays where it is, or moves into a bucket."""
        store = self._store
        store.begin()
        store.gradients += event.num_bytes
        peak = store.add(self._table.ordinal(event.parameter, operation.run.layer))
        block = self._storages.pop(operation.handle, None)
        if isinstance(store, KeptGradients):
            self._held.set(store.buffers)
        if block is None:
            pass
        elif isinstance(store, KeptGradients) and not store.accumulates:
            self._kept.append(block)
        else:
            self.allocator.free(block)
        if not isinstance(store, KeptGradients):
            self._settle(peak)

    def _settle(self, peak: int) -> None:
        """Hold what the store holds now, after passing through its ``peak``."""
        store = self._store
        held = self._earlier + store.buffers + (0 if isinstance(store, KeptGradients) else store.gradients)
        self._held.set(held)
        self._pass(peak - store.buffers - store.gradients)

    def _pass(self, num_bytes: int) -> None:
        """Allocate ``num_bytes`` for a moment."""
        if num_bytes > 0:
            self.allocator.free(self.allocator.allocate(num_bytes))

    def _reduce_at_boundary(self) -> None:
        """Stages 0 and 1 reduce the kept gradients before the step."""
        if self._recipe.zero_stage not in (0, 1) or not isinstance(self._store, KeptGradients):
            return
        store = self._store
        before = Components(gradients=store.gradients, communication_buffers=store.buffers)
        peak, change = boundary_reduction(self._table, self._recipe, self._num_ranks, self._rank, before)
        self._pass(peak.total - before.total)
        if self._recipe.zero_stage == 1:
            self._free(self._kept)
            self._held.set(before.total + change.total)

    def _step(self, blocks: EngineBlocks, *, is_first: bool) -> None:
        if is_first and self._recipe.offload_optimizer is Offload.NONE:
            for num_bytes in blocks.states:
                self.allocator.allocate(num_bytes)
        passing = [self.allocator.allocate(num_bytes) for num_bytes in blocks.step_transients if num_bytes]
        self._free(passing)
        self._free(self._copies)
        self._free(self._kept)
        self._held.set(0)

    def _free(self, blocks: list[Block]) -> None:
        for block in blocks:
            self.allocator.free(block)
        blocks.clear()


def _gathering(gathered: GatheredWeights, event: Any, run: Run) -> tuple[int, int]:
    peak = 0
    if isinstance(event, Fetch):
        peak = gathered.fetch(event.module, run)
    elif isinstance(event, Release):
        gathered.release(event, run)
    elif isinstance(event, Hold):
        gathered.hold(event, run)
    elif isinstance(event, Drop):
        gathered.drop(event, run)
    return gathered.live_bytes, max(peak, gathered.live_bytes)


def peak_reserved_bytes(
    table: ParameterTable,
    trace: Trace,
    operations: Operations,
    recipe: Recipe,
    *,
    num_ranks: int,
    workspaces: Sequence[int] = (),
    capacity_bytes: int | None = None,
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
    )
    replay.run()
    # The model's small storages pack well into segments of their own.
    small = -(-operations.small_peak_bytes // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
    return replay.allocator.peak_reserved_bytes + small


__all__ = ["EngineBlocks", "Reservation", "engine_blocks", "peak_reserved_bytes"]
