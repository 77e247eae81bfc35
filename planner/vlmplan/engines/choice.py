"""Which engine runs a recipe. A new one is registered here."""

from collections.abc import Mapping

from vlmplan.engines.ddp import DataParallel
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.engines.fsdp2 import FullyShard
from vlmplan.engines.parameters import ParameterTable, fullest_rank
from vlmplan.engines.plain import PlainPyTorch
from vlmplan.engines.zero0 import Zero0
from vlmplan.engines.zero3 import Zero3
from vlmplan.engines.zero12 import Zero12
from vlmplan.recipe import Recipe

ON_ONE_GPU: Mapping[int | None, type[Engine]] = {None: PlainPyTorch, 0: Zero0, 1: Zero12, 2: Zero12, 3: Zero3}
"""By ``Recipe.zero_stage``, the simplest first."""
ON_SEVERAL_GPUS: Mapping[int | None, type[Engine]] = {**ON_ONE_GPU, None: DataParallel}


def stages_on(num_gpus: int) -> tuple[int | None, ...]:
    """What ``Recipe.zero_stage`` can be on so many GPUs, the simplest engine first."""
    return tuple(_engines(num_gpus))


def engine_of(
    table: ParameterTable, recipe: Recipe, *, num_ranks: int, rank: int | None = None, sink: Sink = NULL_SINK
) -> Engine:
    """The engine of ``recipe`` on ``rank``; without one, on the rank that holds most."""
    kind = engine_kind(recipe, num_ranks)
    if rank is None:
        rank = fullest_rank(table, num_ranks) if kind.ranks_differ else 0
    return kind(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)


def overlapped_fraction(recipe: Recipe, num_gpus: int) -> float:
    """Part of a step's micro batches behind whose computation collectives hide."""
    return engine_kind(recipe, num_gpus).overlapped_micro_batches(recipe) / recipe.grad_accum


def engine_kind(recipe: Recipe, num_ranks: int) -> type[Engine]:
    return FullyShard if recipe.fsdp else _engines(num_ranks)[recipe.zero_stage]


def _engines(num_gpus: int) -> Mapping[int | None, type[Engine]]:
    return ON_ONE_GPU if num_gpus == 1 else ON_SEVERAL_GPUS
