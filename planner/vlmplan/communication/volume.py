"""The communication volume of one optimizer step: what an engine sends from one rank, and its totals."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from vlmplan.architecture.trace import Trace
from vlmplan.engines.choice import engine_of
from vlmplan.engines.collectives import Collectives, exchanges
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe


def step_collectives(table: ParameterTable, recipe: Recipe, *, num_ranks: int, trace: Trace) -> tuple[Collectives, ...]:
    """What one rank sends in an optimizer step of ``grad_accum`` micro batches like ``trace``."""
    of_engine = engine_of(table, recipe, num_ranks=num_ranks, rank=0).collectives(trace)
    return (*of_engine, *exchanges(trace, recipe.grad_accum, recipe.sequence_parallel))


class KindTotal(NamedTuple):
    """Number and bytes of the collectives of one kind."""

    num_collectives: int
    num_bytes: int


def by_kind(collectives: Iterable[Collectives]) -> dict[str, KindTotal]:
    """The totals of a step by the kind's name."""
    totals: dict[str, KindTotal] = {}
    for one in collectives:
        so_far = totals.get(one.kind.value, KindTotal(0, 0))
        totals[one.kind.value] = KindTotal(so_far.num_collectives + one.count, so_far.num_bytes + one.num_bytes)
    return totals


def volume_json(collectives: Iterable[Collectives]) -> dict[str, Any]:
    """Collectives as ``rehearse --json`` shows them."""
    totals = by_kind(collectives)
    return {
        "per_step": sum(total.num_bytes for total in totals.values()),
        "by_kind": {kind: {"count": total.num_collectives, "bytes": total.num_bytes} for kind, total in totals.items()},
    }
