"""Which engine runs a recipe. A new one is registered here."""

from vlmplan.engines.engine import Engine
from vlmplan.engines.events import NULL_SINK, Sink
from vlmplan.engines.parameters import ParameterTable, fullest_rank
from vlmplan.engines.plain import PlainPyTorch
from vlmplan.engines.zero0 import Zero0
from vlmplan.engines.zero3 import Zero3
from vlmplan.engines.zero12 import Zero12
from vlmplan.recipe import Recipe

ENGINES: dict[int | None, type[Engine]] = {None: PlainPyTorch, 0: Zero0, 1: Zero12, 2: Zero12, 3: Zero3}
"""By ``Recipe.zero_stage``."""


def engine_of(
    table: ParameterTable, recipe: Recipe, *, num_ranks: int, rank: int | None = None, sink: Sink = NULL_SINK
) -> Engine:
    """The engine of ``recipe`` on ``rank``; without one, on the rank that holds most."""
    kind = ENGINES[recipe.zero_stage]
    if rank is None:
        rank = fullest_rank(table, num_ranks) if kind.ranks_differ else 0
    return kind(table, recipe, num_ranks=num_ranks, rank=rank, sink=sink)
