"""Which engine runs a recipe. A new one is registered here.

An engine's module is imported when a recipe asks for it: an estimate needs one, and all of them take a tenth of it.
"""

from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind

STAGES: tuple[int | None, ...] = (None, 0, 1, 2, 3)
"""Values of ``Recipe.zero_stage``, the simplest engine first."""


def engine_of(
    table: ParameterTable,
    recipe: Recipe,
    *,
    num_ranks: int,
    rank: int | None = None,
    sink: Sink = NULL_SINK,
    room_bytes: int | None = None,
) -> Engine:
    """The engine of ``recipe`` on ``rank``; without one, on the rank whose step takes most. ``room_bytes``:
    ``Engine.room_bytes``."""
    kind = engine_kind(recipe, num_ranks)
    if rank is None:
        rank = kind.rank_of_highest_step(table, recipe, num_ranks)
    engine = kind(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
    engine.room_bytes = room_bytes
    return engine


def overlapped_fraction(recipe: Recipe, num_gpus: int) -> float:
    """Part of a step's micro batches behind whose computation collectives hide."""
    return engine_kind(recipe, num_gpus).overlapped_micro_batches(recipe) / recipe.grad_accum


def engine_kind(recipe: Recipe, num_ranks: int) -> type[Engine]:
    if recipe.is_flat:
        from vlmplan.engines.fsdp1 import FlatShard

        return FlatShard
    if recipe.fsdp:
        from vlmplan.engines.fsdp2 import FullyShard

        return FullyShard
    match recipe.zero_stage:
        case None if num_ranks == 1:
            from vlmplan.engines.plain import PlainPyTorch

            return PlainPyTorch
        case None:
            from vlmplan.engines.ddp import DataParallel

            return DataParallel
        case 0:
            from vlmplan.engines.zero0 import FlatZero0, Zero0

            return FlatZero0 if recipe.flattens_update else Zero0
        case 3 if recipe.optimizer is OptimizerKind.MUON:
            from vlmplan.engines.muon3 import MuonZero3

            return MuonZero3
        case 3:
            from vlmplan.engines.zero3 import Zero3

            return Zero3
        case _ if recipe.optimizer is OptimizerKind.MUON:
            from vlmplan.engines.muon12 import MuonZero12

            return MuonZero12
        case _ if recipe.loraplus_lr_ratio is not None or recipe.zero.round_robin_gradients:
            from vlmplan.engines.groups12 import GroupedZero12

            return GroupedZero12
        case _:
            from vlmplan.engines.zero12 import Zero12

            return Zero12
