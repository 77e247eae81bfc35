"""Block by block: what an engine asks for in the optimizer step.

Sources as for ``engines``: every engine takes norms, casts gradients to the type of the master weights, makes the
optimizer's states in the first step, and updates.
"""

from collections.abc import Sequence

from vlmplan.memory.blocks import EngineBlocks
from vlmplan.memory.buckets import PARTITION
from vlmplan.memory.engines import NORM_BYTES, overflow_check_bytes
from vlmplan.memory.optimizer_states import plain_update_sizes, state_sizes, update_sizes
from vlmplan.memory.parameters import ParameterTable, partition_of, sharded_elements, slices, sub_group_elements
from vlmplan.recipe import Offload, Precision, Recipe
from vlmplan.units import DType


class Stepping:
    """The optimizer steps of one rank."""

    def __init__(self, table: ParameterTable, recipe: Recipe, num_ranks: int, rank: int, blocks: EngineBlocks) -> None:
        self._table, self._recipe, self._num_ranks, self._rank, self._blocks = table, recipe, num_ranks, rank, blocks
        self._weight_bytes, self._master_bytes = table.trained_dtype.num_bytes, recipe.master_dtype.num_bytes
        self._shapes = table.trained_shapes

    def step(self, *, is_first: bool) -> None:
        """One step, ``is_first``: the one that makes the states. Gradients are gone after it."""
        stage = self._recipe.zero_stage
        if stage is None:
            self._step_plain(is_first=is_first)
        elif stage == 0:
            self._step_stage0(is_first=is_first)
        elif self._recipe.offload_optimizer is Offload.NONE:
            if stage == 3:
                self._step_stage3(is_first=is_first)
            else:
                self._step_stage12(is_first=is_first)
        for ordinal in range(len(self._shapes)):
            self._blocks.free(ordinal)
        self._blocks.free(PARTITION)

    def _step_plain(self, *, is_first: bool) -> None:
        """States in the weights' own types, type by type."""
        by_dtype = self._table.shapes_by_dtype
        if is_first:
            for dtype, shapes in by_dtype.items():
                self._keep_states(shapes, dtype)
        for sizes in plain_update_sizes(self._recipe, by_dtype):
            self._blocks.pass_through(sizes)

    def _step_stage0(self, *, is_first: bool) -> None:
        """A copy of every gradient in the type of the master weights; states are there from init on."""
        if self._table.trained_dtype is DType.FLOAT32:
            self._update(self._shapes, DType.FLOAT32, is_first=is_first)
            return
        width = DType.FLOAT32.num_bytes
        for numel in self._table.numels:
            self._blocks.pass_through([numel * width])
        for ordinal, numel in enumerate(self._table.numels):
            self._blocks.make(("copy", ordinal), numel * width)
        self._update(self._shapes, DType.FLOAT32, is_first=False)
        for ordinal in range(len(self._shapes)):
            self._blocks.free(("copy", ordinal))

    def _step_stage12(self, *, is_first: bool) -> None:
        """The partition: norms of its slices, the flattened gradients and their cast, then the update."""
        partition = partition_of(self._table.num_trained, self._num_ranks, self._rank)
        for numel in slices(self._table, partition):
            self._blocks.pass_through([numel * NORM_BYTES])
        self._flatten(partition.size)
        for ordinal in range(len(self._shapes)):
            self._blocks.free(ordinal)
        self._blocks.free(PARTITION)
        self._update([(partition.size,)], self._recipe.master_dtype, is_first=is_first)
        self._blocks.free("gradient")

    def _step_stage3(self, *, is_first: bool) -> None:
        """Sub-group by sub-group; in fp16 all gradients are looked at for infinities before."""
        numels = self._table.numels
        if self._recipe.precision is Precision.FP16:
            trained = sharded_elements(numels, self._num_ranks)
            own = trained * self._weight_bytes
            self._blocks.pass_through([own, trained * overflow_check_bytes(self._recipe) - own])
        for numel in numels:
            self._blocks.pass_through([-(-numel // self._num_ranks) * NORM_BYTES])
        for size in sub_group_elements(numels, self._num_ranks, self._recipe.zero.sub_group_size):
            self._flatten(size)
            self._update([(size,)], self._recipe.master_dtype, is_first=is_first)
            self._blocks.free("gradient")

    def _flatten(self, numel: int) -> None:
        """``flatten(...).to(...)``: in one piece, and in the type of the master weights if that is another."""
        self._blocks.make("flat", numel * self._weight_bytes)
        if self._weight_bytes == self._master_bytes:
            self._blocks.rename("flat", "gradient")
        else:
            self._blocks.make("gradient", numel * self._master_bytes)
            self._blocks.free("flat")

    def _keep_states(self, shapes: Sequence[tuple[int, ...]], dtype: DType) -> None:
        for shape in shapes:
            for num_bytes in state_sizes(self._recipe.optimizer, shape, dtype):
                self._blocks.keep(num_bytes)

    def _update(self, shapes: Sequence[tuple[int, ...]], dtype: DType, *, is_first: bool) -> None:
        if is_first:
            self._keep_states(shapes, dtype)
        for sizes in update_sizes(self._recipe, shapes, dtype):
            self._blocks.pass_through(sizes)


__all__ = ["Stepping"]
