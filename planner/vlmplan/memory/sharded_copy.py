"""The blocks of a second model under ZeRO-3, whose engine shards it as the first shards the one that is trained."""

from vlmplan.engines.choice import engine_of
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.shards import Shards
from vlmplan.memory.allocator import CachingAllocator
from vlmplan.memory.blocks import EngineBlocks
from vlmplan.recipe import Recipe


def load_sharded_copy(table: ParameterTable, recipe: Recipe, num_ranks: int, allocator: CachingAllocator) -> None:
    """Load it. Weights up to the persistence threshold are whole when its engine is there."""
    blocks = EngineBlocks(allocator, has_streams=engine_of(table, recipe, num_ranks=num_ranks, rank=0).has_streams)
    copy = engine_of(table, recipe, num_ranks=num_ranks, rank=0, sink=blocks)
    copy.load(is_on_cpu=False)
    copy.end_load()
    shards = Shards(table, recipe, num_ranks)
    for weight in [entry.parameter for entry in table.entries if shards.has_whole]:
        if shards.is_persistent(weight):
            allocator.allocate(weight.num_bytes)
