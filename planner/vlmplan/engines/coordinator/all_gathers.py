"""The all-gathers that ZeRO-3 starts for weights in forward and backward."""

from collections.abc import Iterable, Sequence

from vlmplan.architecture.trace import Trace
from vlmplan.engines.collectives import CollectiveKind, Collectives, StepPhase, padded_total
from vlmplan.engines.coordinator.first_pass import decided_before
from vlmplan.engines.coordinator.module_order import SmallWeights, small_without_order, training_sizes
from vlmplan.engines.coordinator.walk import gather_walk
from vlmplan.engines.coordinator.walk_bytes import GatherWalk
from vlmplan.engines.coordinator.wrapper_modules import wrappers
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe


def weight_gathers(trace: Trace, recipe: Recipe, table: ParameterTable, num_ranks: int) -> Iterable[Collectives]:
    """The all-gathers of weights in a step of ``num_ranks`` ranks.

    With hpZ all ranks are asked for trained weights in the first forward of a step alone, for frozen ones in the very
    first of the run; after that the group that has a copy is, in collectives apart where both are wanted.
    """
    often, hpz, kind = recipe.grad_accum, recipe.hpz, CollectiveKind.ALL_GATHER
    if hpz == 1 and (small := small_without_order(trace, recipe)):
        yield from _gathers_without_order(trace, recipe, table, num_ranks, small)
        return
    walk = _walk(trace, recipe, table)
    for phase, sent in ((StepPhase.FORWARD, walk.forward.sent), (StepPhase.BACKWARD, walk.backward.sent)):
        trained, frozen = padded_total(sent.trained, num_ranks), padded_total(sent.frozen, num_ranks)
        if hpz == 1:
            yield Collectives(kind, phase, often * sent.num_gathers, often * (trained + frozen))
            continue
        inside = often - 1 if phase is StepPhase.FORWARD else often
        yield Collectives(kind, phase, inside * sent.num_gathers, inside * (trained + frozen), hpz)
        if phase is StepPhase.FORWARD:
            yield Collectives(kind, phase, sent.num_with_trained, trained)
            yield Collectives(kind, phase, sent.num_with_frozen, frozen, hpz)


def _walk(trace: Trace, recipe: Recipe, table: ParameterTable, small: SmallWeights = SmallWeights.WHOLE) -> GatherWalk:
    around, decided = wrappers(recipe, table), decided_before(recipe, table)
    return gather_walk(trace, training_sizes(recipe), wrappers=around, decided=decided, small=small)


def _gathers_without_order(
    trace: Trace, recipe: Recipe, table: ParameterTable, num_ranks: int, small: Sequence[SmallWeights]
) -> Iterable[Collectives]:
    walks = [_walk(trace, recipe, table, one) for one in small]
    for phase in (StepPhase.FORWARD, StepPhase.BACKWARD):
        sent = [walk.forward.sent if phase is StepPhase.FORWARD else walk.backward.sent for walk in walks]
        num_bytes = sum(padded_total(one.trained, num_ranks) + padded_total(one.frozen, num_ranks) for one in sent)
        yield Collectives(CollectiveKind.ALL_GATHER, phase, sum(one.num_gathers for one in sent), num_bytes)
