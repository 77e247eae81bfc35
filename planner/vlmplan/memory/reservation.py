"""How much memory torch reserves: every storage of a run's first optimizer steps, in order, through its allocator.

The model's storages come from a ``LoggingTape``; what the engine allocates follows the same simulations as the
timeline, block by block and on DeepSpeed's streams. The first step differs: the optimizer's states appear at its end
and take the places that activations left, and ZeRO-3 does not know the order of modules yet.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT
from vlmplan.architecture.reference import is_of_copy
from vlmplan.architecture.storage_log import EngineEvent, Operation, Operations
from vlmplan.architecture.trace import HEAD, Cached, Fetch, GradientTaken, KeptCast, LastAdapter, Run
from vlmplan.engines.choice import engine_of
from vlmplan.engines.coordinator.module_order import (
    BEHIND_STEP,
    LATER,
    Begun,
    SmallWeights,
    begun_first,
    begun_without_order,
    evaluates_by_several,
    small_without_order,
)
from vlmplan.engines.events import Stream
from vlmplan.engines.parameters import ParameterTable
from vlmplan.memory.allocator import Block, CachingAllocator
from vlmplan.memory.blocks import BlockLog, EngineBlocks
from vlmplan.memory.evaluation import Evaluated
from vlmplan.memory.forwards_alone import ForwardsAlone
from vlmplan.memory.gathered_blocks import Changes, GatheredBlocks, forward_changes, weights_of_models
from vlmplan.memory.head_reads import HeadReads
from vlmplan.memory.lasting_blocks import NOTHING_LASTING, Lasting
from vlmplan.memory.replayed_steps import MicroBatch, num_replayed
from vlmplan.memory.reserved_peaks import ReservedPeak
from vlmplan.memory.sharded_copy import load_sharded_copy
from vlmplan.memory.step_batches import StepBatches
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import Reference

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.gathered_weights import GatheredWeights

NO_CHANGES: Changes = []


class EvaluatedOperations(NamedTuple):
    """The forwards of a batch of ``evaluated``, and what is there when the last token is generated."""

    evaluated: Evaluated
    passes: Sequence[MicroBatch]
    last_token: Sequence[int]


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
        self._has_streams = engine_of(table, recipe, num_ranks=num_ranks, rank=0).has_streams
        self._blocks = EngineBlocks(self.allocator, has_streams=self._has_streams)
        self._engine = engine_of(
            table, recipe, num_ranks=num_ranks, rank=rank, sink=self._blocks, room_bytes=room_bytes
        )
        self._has_run_forward = self._evaluates_copy = False
        self._evaluates_first = evaluated is not None and recipe.evaluation is not None and recipe.evaluation.on_start
        num_hosts = num_ranks if self._engine.gathers_weights and self._engine.offloads_weights else 0
        self._heads = HeadReads(is_known=recipe.reference is Reference.PRECOMPUTED, num_hosts=num_hosts)
        self._begun_first = begun_first(recipe)
        has_no_rollout = recipe.task is None or not recipe.task.is_grpo
        self._lacks_secondary = recipe.hpz > 1 and recipe.grad_accum > 1 and has_no_rollout
        comes_by_order = self._engine.gathers_weights and recipe.hpz == 1
        self._small = small_without_order(self._trace, recipe) if comes_by_order else ()
        self._batches = StepBatches(self.allocator, lasting.batch, recipe.grad_accum if lasting.batch else 0)
        self._sent: dict[int, Block] = {}
        """Tensors of the micro batch that are there since its step began, by their handles in its trace."""
        self._storages: dict[int, Block] = {}
        self._gathered: dict[int, Block] = {}
        self._casts: list[Block] = []
        self._cached: dict[int, bool] = {}
        """What is kept while text is generated, by its handles in the trace: whether tokens make it longer."""
        self._kept: list[Block] = []
        """What the training loop holds of the micro batch before."""
        self._left: Changes = []
        """What gathered weights leave to be freed when the step or the next micro batch begins."""

    def run(self) -> None:
        """Load, init and the optimizer steps. Raises OutOfDeviceMemory, and TooMuchReserved."""
        waits = self._recipe.uses_deepspeed and not self._engine.gathers_weights
        models, tables = self._lasting.models, self._lasting.tables
        first, behind = (models, ()) if waits else ((), models)
        made, loaded = (tables, ()) if self._engine.gathers_weights else ((), tables)
        for num_bytes in (*first, *made):
            self.allocator.allocate(num_bytes)
        self._engine.load(is_on_cpu=False)
        if self._recipe.zero_stage == 3 and self._recipe.reference is Reference.COPY:
            self._engine.end_load()
            load_sharded_copy(self._table, self._recipe, self._num_ranks, self.allocator)
        if (
            models and not self._recipe.casts_weights
        ):  # ``prepare_model`` of trl 1.16, before DDP is made of the trained one
            self._engine.place()
            behind, loaded = (), (*loaded, *models)
        for num_bytes in loaded:
            self.allocator.allocate(num_bytes)
        self.begin_training()
        self._engine.build()
        for num_bytes in behind:
            self.allocator.allocate(num_bytes)
        if self._evaluated is not None and self._evaluates_first:
            self._evaluate(self._evaluated, is_first=True)
        count = self._count
        self._step(self._micro_batches[:count], 0)
        unchanging: set[Hashable] = set()
        """States, and the micro batches of a step that leaves each as it is: to run that again would change nothing."""
        for start in range(count, len(self._micro_batches) - count + 1, count):
            micro_batches = self._micro_batches[start : start + count]
            before, number = self._state(), start // count
            step = before, self._begun_in(number), tuple(id(operations) for _, operations in micro_batches)
            if step not in unchanging:
                self._step(micro_batches, number)
                if self._state() == before:
                    unchanging.add(step)
        if self._evaluated is not None:
            self._evaluate(self._evaluated, is_first=False)
            self._engine.end_evaluation()

    def begin_training(self) -> None:
        """Hugging Face's Trainer gives back what loading has left (``free_memory`` in transformers 5.23
        ``trainer.py``)."""
        if self._recipe.task is not None and self._recipe.keeps_batches:
            self.allocator.empty_cache()

    def peak_reserved(self) -> ReservedPeak:
        """``torch.cuda.max_memory_reserved`` of the run. Raises as ``run`` does."""
        self.run()
        allocator = self.allocator
        return ReservedPeak(allocator.peak_reserved_bytes, allocator.was_short, allocator.ran_out)

    def _evaluate(self, found: EvaluatedOperations, *, is_first: bool) -> None:
        """A first batch, which finds what training has left, and the one that finds most of what is kept. Batches
        between them are left out: the allocator gives back what they leave unused before it runs out."""
        log, kept = BlockLog(), found.evaluated.kept
        weights = self._weights_of_evaluation(found, log, is_first=is_first)
        for sizes in ([], kept.held):
            self.begin_evaluated()
            held = [self.allocator.allocate(num_bytes) for num_bytes in sizes if num_bytes]
            for place, (_, operations) in enumerate(found.passes):
                begins = found.evaluated.begins_forward(place)
                changes = forward_changes(next(weights), operations, log, begins=begins)
                self._engine.runs_second_model = self._evaluates_copy = found.evaluated.is_of_copy(place)
                self._replay_alone(operations, changes)
            for block in held:
                self.allocator.free(block)
        self._engine.runs_second_model = self._evaluates_copy = False
        if is_first:
            log.free_all()
            self._change(log.taken())
        for sizes in (kept.moved, found.last_token):
            for block in [self.allocator.allocate(num_bytes) for num_bytes in sizes if num_bytes]:
                self.allocator.free(block)

    def begin_step(self) -> None:
        """What comes before the micro batches of a step."""
        self._engine.begin_step(self._trace)

    def begin_evaluated(self) -> None:
        """What comes before the forwards of a batch of an evaluation."""

    def _replay_alone(self, operations: Operations, changes: Iterator[Changes]) -> None:
        self._change(next(changes, NO_CHANGES))
        self._replay_forward(operations, changes)
        self._free_storages(self._storages)

    def _free_storages(self, handles: Iterable[int]) -> None:
        for handle in list(handles):
            self.allocator.free(self._storages.pop(handle))

    def _weights_of_evaluation(
        self, found: EvaluatedOperations, log: BlockLog, *, is_first: bool
    ) -> "Iterator[GatheredWeights | None]":
        """Of one forward after the other. Before the first step the first of each model records an order."""
        if is_first and not evaluates_by_several(self._recipe):
            passes = [(found.evaluated.is_of_copy(place), trace) for place, (trace, _) in enumerate(found.passes)]
            yield from weights_of_models(self._engine, passes, log)
        models = [one.weights for one in found.evaluated.models(self._engine, self._trace, log)]
        while True:
            yield from models or [None]

    def _begun_in(self, number: int) -> Sequence[Begun]:
        """What the first micro batches of the step of this ``number`` find, from 0 on."""
        if number < len(self._begun_first):
            return self._begun_first[number]
        return (BEHIND_STEP,) if self._lacks_secondary else ()

    def _step(self, micro_batches: Sequence[MicroBatch], step: int) -> None:
        """The optimizer step of this number, of one or more micro batches."""
        begun = self._begun_in(step)
        self._trace, self._operations = micro_batches[0]
        self._batches.come()
        lacks_secondary = BEHIND_STEP in begun
        if not lacks_secondary:
            self.begin_step()
        for number, (trace, operations) in enumerate(micro_batches):
            self._trace, self._operations = trace, operations
            if lacks_secondary and number == 1:
                self._free_left()
                self.begin_step()
            if step == 0 and number == len(begun) and self._engine.gathers_weights and not self._small:
                self._free_left()
                self._engine.use_first()
            gathering = self._gathering(self._begin(begun[number] if number < len(begun) else LATER, number))
            self._sent = self._batches.matching(number, operations.batch)
            self._micro_batch(gathering, accumulates=number > 0, is_last=number == len(micro_batches) - 1)
            self._sent = {}
        self._free_left()
        self._engine.step(is_first=step == 0)
        self._free_storages(self._storages)

    def _begin(self, begun: Begun, number: int) -> Begun:
        """What the micro batch of this number finds."""
        if not self._small:
            return begun
        found = begun_without_order(begun, self._small[number], self._trace)
        if found.small is not SmallWeights.WHOLE:
            self._engine.release_small()
        return found

    def _state(self) -> Hashable:
        """All that a step after the first depends on, beside its micro batches: free blocks, and those that may go.

        Every new segment changes it, as addresses are not used twice.
        """
        gathered = [(handle, block.address, block.num_bytes) for handle, block in self._gathered.items()]
        of_batches = self._batches.state()
        return self.allocator.state(), self._blocks.state(), of_batches, tuple(gathered), tuple(self._left)

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
        holds_graph = is_last and self._recipe.steps_within_backward
        if not holds_graph:
            self._replay(self._unsent(self._operations.after), changes)
        self._free_storages(handle for handle, _ in self._operations.batch if handle in self._storages)
        if self._recipe.keeps_graph:  # until the next micro batch, which its trace begins with
            self._kept += self._storages.values()
            self._storages.clear()
        elif not holds_graph:
            self._free_storages(self._storages)

    def _free_left(self) -> None:
        self._change(self._left)
        self._left = []

    def _gathering(self, begun: Begun) -> Sequence[Changes]:
        """The blocks of whole weights at each event about them, at the end of backward, and after that."""
        if not self._engine.gathers_weights:
            return []
        return self._gathered_blocks.changes(self._engine, self._trace, self._operations, begun)

    def _replay_forward(self, operations: Operations, gathering: Iterator[Changes]) -> None:
        ends = operations.forward_ends
        self._replay(self._unsent(operations.forward[: ends[0]]), gathering)
        self._begin_first_forward()
        self._engine.begin_forward(self._trace)
        alone = ForwardsAlone()
        for run, (start, end) in zip(operations.schedule[1:], pairwise(ends), strict=True):
            if alone.begins(run, self._storages):
                self._free_casts()
            if run.key.rpartition(".")[2] == HEAD:
                self._change(self._heads.read())
            self._replay_run(operations.forward[start:end], run, gathering, is_backward=False)
            if run.key.endswith(AUTOCAST_LEFT):
                self._free_casts()
            for handle in alone.left_by(run, self._storages):
                self.allocator.free(self._storages.pop(handle))
        self._engine.end_forward()
        self._free_casts()

    def _unsent(self, operations: Sequence[Operation]) -> list[Operation]:
        """Without those of tensors that come before the micro batch and stay behind it."""
        return [one for one in operations if isinstance(one, EngineEvent) or one[0] not in self._sent]

    def _free_casts(self) -> None:
        """Forward leaves autocast."""
        for block in self._casts:
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
        for run, (start, end) in zip(
            reversed(operations.schedule), pairwise((0, *operations.backward_ends)), strict=True
        ):
            self._replay_run(operations.backward[start:end], run, gathering, is_backward=True)

    def _replay_run(
        self, operations: Sequence[Operation], run: Run, gathering: Iterator[Changes], *, is_backward: bool
    ) -> None:
        if not self._engine.follows_layers:
            self._replay(operations, gathering)
            return
        self._engine.enter(run, is_backward=is_backward)
        self._replay(operations, iter(()))
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
            elif isinstance(operation.event, Cached):
                self._cached[operation.handle] = operation.event.grows
            elif isinstance(operation.event, LastAdapter):
                self._engine.begin_last_adapter(operation.run)
            else:
                by_copy = is_of_copy(operation.run) or self._evaluates_copy
                changes = next(gathering, NO_CHANGES)
                if isinstance(operation.event, Fetch):
                    changes = self._heads.at_fetch(operation.event, changes, is_of_copy=by_copy)
                self._change(changes, is_of_copy=by_copy)

    def _change(self, changes: Changes, *, is_of_copy: bool = False) -> None:
        allocator, gathered, has_streams = self.allocator, self._gathered, self._has_streams
        for handle, num_bytes, stream in changes:
            if (is_of_copy or self._evaluates_copy) and stream is Stream.GATHER:
                stream = Stream.GATHER_OF_COPY
            if num_bytes:
                gathered[handle] = allocator.allocate(num_bytes, stream if has_streams else Stream.DEFAULT)
            elif handle in gathered or handle not in self._heads.absent:
                allocator.free(gathered.pop(handle))

    def _take(self, operation: EngineEvent, event: GradientTaken) -> None:
        ordinal = self._table.ordinal(event.parameter, operation.run.layer)
        self._engine.expect_gradient()
        block = self._storages.pop(operation.handle, None)
        if block is not None:
            self._blocks.hand_over(ordinal, block)
        self._engine.take_part(ordinal, event.part)
