"""Block by block: how weights come to the device, and what an engine asks for while it is built.

Sources (``deepspeed`` 0.19.8): ``runtime/engine.py``, ``fp16/unfused_optimizer.py``, ``zero/stage_1_and_2.py``,
``zero/partition_parameters.py``, ``zero/stage3.py`` and ``defragment`` in ``zero/utils.py``. Where the cache is emptied
matters as much as what is made: before stages 1 and 2 flatten the weights, and before stage 3 lays its shards side by
side.
"""

from collections.abc import Callable

from vlmplan.architecture.adapters import NF4_BLOCK
from vlmplan.architecture.model import NamedParameter
from vlmplan.memory.allocator import CachingAllocator
from vlmplan.memory.blocks import EngineBlocks
from vlmplan.memory.optimizer_states import state_sizes, update_sizes
from vlmplan.memory.parameters import ParameterTable, partition_size, sharded_elements, sub_group_elements
from vlmplan.memory.timeline import arriving_bytes
from vlmplan.recipe import Offload, Recipe
from vlmplan.units import DType


class Building:
    """The load and init of one rank."""

    def __init__(
        self,
        table: ParameterTable,
        recipe: Recipe,
        num_ranks: int,
        *,
        allocator: CachingAllocator,
        blocks: EngineBlocks,
    ) -> None:
        self._table, self._recipe, self._num_ranks = table, recipe, num_ranks
        self._allocator, self._blocks = allocator, blocks
        self._trained = [entry for entry in table.entries if entry.parameter.requires_grad]
        self._weight_bytes, self._master_bytes = table.trained_dtype.num_bytes, recipe.master_dtype.num_bytes
        self._offloads_weights = recipe.offload_params is not Offload.NONE
        self._offloads_optimizer = recipe.offload_optimizer is not Offload.NONE

    def run(self) -> None:
        if self._recipe.zero_stage == 3:
            self._load_shards()
            self._build_stage3()
            return
        self._load_whole()
        builders: dict[int | None, Callable[[], None]] = {
            0: self._build_stage0,
            1: self._build_stage12,
            2: self._build_stage12,
        }
        if build := builders.get(self._recipe.zero_stage):
            build()

    # -- weights that every rank has whole -----------------------------------------------------------------------

    def _load_whole(self) -> None:
        """One by one; those that are upcast when all are there, and adapters of packed weights before that."""
        entries = list(self._table.entries)
        late: list[NamedParameter] = []
        if any(entry.parameter.stored_bytes is not None for entry in entries):
            late = self._trained
            entries = [entry for entry in entries if not entry.parameter.requires_grad]
        upcast: list[NamedParameter] = []
        for entry in entries:
            arriving = arriving_bytes(entry.parameter, self._recipe)
            if entry.parameter.stored_bytes is not None:
                self._pack(entry, arriving)
            else:
                self._blocks.make(_weight(entry), arriving or entry.parameter.num_bytes)
                if arriving:
                    upcast.append(entry)
        for entry in late:
            self._blocks.make(_weight(entry), entry.parameter.num_bytes)
        for entry in upcast:
            self._blocks.keep(entry.parameter.num_bytes)
            self._blocks.free(_weight(entry))

    def _pack(self, entry: NamedParameter, arriving: int) -> None:
        """A weight of 16 bit, and beside it that of 4 bit with its scales (``quantize_4bit`` of bitsandbytes)."""
        self._blocks.make("arriving", arriving)
        packed = -(-entry.parameter.numel // 2)
        self._blocks.keep(packed)
        scales = -(-entry.parameter.numel // NF4_BLOCK) * DType.FLOAT32.num_bytes
        self._blocks.pass_through([scales, scales])  # as they are, and less their mean
        self._blocks.keep(entry.parameter.num_bytes - packed)
        self._blocks.free("arriving")

    # -- stage 0 -------------------------------------------------------------------------------------------------

    def _build_stage0(self) -> None:
        """Master copies, and a step on gradients of zero that makes the optimizer's states."""
        if self._table.trained_dtype is DType.FLOAT32:
            return
        blocks, width = self._blocks, DType.FLOAT32.num_bytes
        shapes = self._table.trained_shapes
        for numel in self._table.numels:
            blocks.make("clone", numel * self._weight_bytes)
            blocks.keep(numel * width)
            blocks.free("clone")
        for own_width in (self._weight_bytes, width):
            for ordinal, numel in enumerate(self._table.numels):
                blocks.make((own_width, ordinal), numel * own_width)
        for shape in shapes:
            for num_bytes in state_sizes(self._recipe.optimizer, shape, DType.FLOAT32):
                blocks.keep(num_bytes)
        for sizes in update_sizes(self._recipe, shapes, DType.FLOAT32):
            blocks.pass_through(sizes)
        for own_width in (self._weight_bytes, width):
            for ordinal in range(len(shapes)):
                blocks.free((own_width, ordinal))

    # -- stages 1 and 2 ------------------------------------------------------------------------------------------

    def _build_stage12(self) -> None:
        """All trained weights in one buffer, then the master copy of a slice of it and once its gradient."""
        blocks = self._blocks
        partition = partition_size(self._table.num_trained, self._num_ranks)
        own, master = partition * self._weight_bytes, partition * self._master_bytes
        self._allocator.empty_cache()
        blocks.keep(own * self._num_ranks)
        for entry in self._trained:
            blocks.free(_weight(entry))
        if self._offloads_optimizer:
            blocks.pass_through([own])
            blocks.keep(self._table.largest_trained * self._weight_bytes)
            return
        blocks.make("slice", own)
        if self._weight_bytes == self._master_bytes:
            blocks.rename("slice", "master")
        else:
            blocks.keep(master)
            blocks.free("slice")
        blocks.pass_through([master])

    # -- stage 3 -------------------------------------------------------------------------------------------------

    def _load_shards(self) -> None:
        """Every module is whole when it is built, and once more when its values come; adapters stay whole."""
        adapters = self._trained if self._recipe.trains_adapters else []
        modules = self._modules()
        tied = self._table.tied_numel * self._recipe.precision.dtype.num_bytes
        for entries in modules:
            self._cut_up(entries)
        if tied:
            self._blocks.make("tied", tied)
            self._blocks.make("tied shard", 0 if self._offloads_weights else -(-tied // self._num_ranks))
            self._blocks.free("tied")
        for entries in modules:
            shards = [self._shard_bytes(entry) for entry in entries] if self._offloads_weights else []
            whole = [self._num_ranks * self._shard_bytes(entry) for entry in entries]
            self._blocks.pass_through(whole + shards if len(entries) == 1 else shards + whole)
        for entry in adapters:
            self._blocks.make(_weight(entry), entry.parameter.num_bytes)
        self._blocks.free("tied shard")

    def _cut_up(self, entries: list[NamedParameter]) -> None:
        for entry in entries:
            self._blocks.make(_weight(entry), entry.parameter.num_bytes)
        for entry in entries:
            if not self._offloads_weights:
                self._blocks.make(_shard(entry), self._shard_bytes(entry))
            self._blocks.free(_weight(entry))

    def _build_stage3(self) -> None:
        blocks = self._blocks
        if self._recipe.trains_adapters:
            for entry in self._trained:
                blocks.make(_shard(entry), 0 if self._offloads_weights else self._shard_bytes(entry))
                blocks.free(_weight(entry))
        trained = sharded_elements(self._table.numels, self._num_ranks)
        if not self._offloads_weights:
            for entry in self._trained:
                blocks.free(_shard(entry))
            self._allocator.empty_cache()
            blocks.keep(trained * self._weight_bytes)
        if not self._offloads_optimizer:
            self._make_masters()
        if self._recipe.zero.contiguous_gradients:
            blocks.keep(self._recipe.zero.reduce_bucket_size * self._weight_bytes)
        if not self._offloads_optimizer:
            blocks.keep(trained * self._weight_bytes)
        for entry in self._trained:  # whole once more, for the hooks that take their gradients
            shard = self._shard_bytes(entry)
            blocks.pass_through([shard * self._num_ranks, shard if self._offloads_weights else 0])

    def _make_masters(self) -> None:
        """A cast and its clone of each sub-group; the cast goes when the next one is there."""
        blocks, width = self._blocks, self._master_bytes
        groups = sub_group_elements(self._table.numels, self._num_ranks, self._recipe.zero.sub_group_size)
        if width != self._weight_bytes:
            for number, numel in enumerate(groups):
                blocks.make(("cast", number), numel * width)
                blocks.free(("cast", number - 1))
                blocks.keep(numel * width)
            blocks.free(("cast", len(groups) - 1))
        else:
            for numel in groups:
                blocks.keep(numel * width)
        blocks.pass_through([max(groups) * width])

    def _modules(self) -> list[list[NamedParameter]]:
        """The own weights of each module, in order, without adapters."""
        modules: dict[str, list[NamedParameter]] = {}
        for entry in self._table.entries:
            if self._recipe.trains_adapters and entry.parameter.requires_grad:
                continue
            modules.setdefault(entry.name.rpartition(".")[0], []).append(entry)
        return list(modules.values())

    def _shard_bytes(self, entry: NamedParameter) -> int:
        return -(-entry.parameter.numel // self._num_ranks) * entry.parameter.dtype.num_bytes


def _weight(entry: NamedParameter) -> tuple[str, str]:
    return "weight", entry.name


def _shard(entry: NamedParameter) -> tuple[str, str]:
    return "shard", entry.name


__all__ = ["Building"]
