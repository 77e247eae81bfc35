"""The micro batch that follows an evaluation under ZeRO-3.

Forwards that no backward follows leave weights whole: those that backward would have used soon. DeepSpeed forgets that
it has them when the next forward begins (``reset_step`` of 0.19.8 ``zero/partitioned_param_coordinator.py`` counts from
nothing), gathers as many others as ever, and releases each at its own next use: beside what is whole in any micro batch
there is what the evaluation has left. A step or a checkpoint partitions everything, so that no other micro batch finds
it.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from vlmplan.architecture.trace import Run, Section, Trace, WeightUse
from vlmplan.engines.coordinator.counts import GatherCounts
from vlmplan.engines.coordinator.first_pass import NOTHING_DECIDED, Decided, first_decisions
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights, notify
from vlmplan.engines.coordinator.records import Key
from vlmplan.engines.coordinator.repeated_layers import section_uses
from vlmplan.engines.coordinator.shapes import shape_of_uses
from vlmplan.engines.coordinator.walk import what_decides
from vlmplan.engines.coordinator.walk_bytes import EventBytes, GatherWalk, PhaseGathers, RunBytes, live_in_run
from vlmplan.engines.coordinator.wrapper_modules import Wrappers
from vlmplan.recipe.zero import ZeroSettings

NUM_FORWARDS = 2
"""Batches of the evaluation: the second finds what the first leaves, and every other what the second does."""


@dataclass(frozen=True, slots=True)
class _WalkKey:
    """Equal ones gather the same, see ``WalkKey``."""

    shape: Hashable
    sizes: ZeroSettings
    wrappers: Wrappers
    num_ranks: int
    secondary_among: int
    by_another_order: bool
    decided: Decided
    training: Trace = field(compare=False)
    evaluated: Sequence[Trace] = field(compare=False)


def walk_behind_evaluation(
    training: Trace,
    evaluated: Sequence[Trace],
    zero: ZeroSettings,
    *,
    wrappers: Wrappers,
    num_ranks: int = 2,
    secondary_among: int = 1,
    by_another_order: bool = False,
    decided: Decided = NOTHING_DECIDED,
) -> GatherWalk:
    """A micro batch like ``training``, by whose order all is gathered, behind forwards like those of ``evaluated``,
    which follow a step. ``secondary_among``: as trained weights lack secondary partitions behind a step, and the others
    as ``gather_walk`` has them. ``by_another_order``: the forwards leave out modules of training, and go by an order of
    their own, which the micro batch behind them loses at the first adapter."""
    sizes, wrappers = what_decides(zero, wrappers)
    shape = shape_of_uses([training, *evaluated])
    by = num_ranks, secondary_among, by_another_order, decided
    return _walked(_WalkKey(shape, sizes, wrappers, *by, training, evaluated))


@lru_cache(maxsize=16)
def _walked(walk: _WalkKey) -> GatherWalk:
    training = walk.training
    gathered = GatheredWeights(
        trace=training,
        zero=walk.sizes,
        num_ranks=walk.num_ranks,
        wrappers=walk.wrappers,
        offloads=walk.num_ranks == 1,
        decisions=first_decisions(training, walk.sizes, walk.wrappers, walk.decided),
    )
    gathered.begin_evaluation()
    for run, section in training.forward():
        _through(gathered, section_uses(section).forward, run)
    gathered.begin_backward()
    for run, section in training.backward():
        _through(gathered, section_uses(section).backward, run)
    gathered.end_backward()
    gathered.partition_all()
    gathered.lack_secondary(walk.secondary_among)
    if walk.by_another_order:
        gathered.make_whole(_left_by_own_order(walk))
        gathered.lose_order_at_adapters()
    else:
        _evaluate(gathered, walk.evaluated)
    most = gathered.begin_forward()
    begun: EventBytes = gathered.live_bytes, most, []
    forward = _phase(gathered, training.forward(), lambda section: section_uses(section).forward)._replace(start=begun)
    most = gathered.begin_backward()
    start = gathered.live_bytes, most, list(gathered.gathers)
    backward = _phase(gathered, training.backward(), lambda section: section_uses(section).backward, start)
    gathered.partition_all()
    return GatherWalk(forward, backward, len(gathered.weights), gathered.live_bytes - gathered.secondary_bytes)


def _evaluate(gathered: GatheredWeights, evaluated: Sequence[Trace]) -> None:
    for trace in [*evaluated] * NUM_FORWARDS:
        gathered.begin_forward()
        for run, section in trace.forward():
            _through(gathered, section_uses(section).forward, run)


def _left_by_own_order(walk: _WalkKey) -> list[Key]:
    """What forwards leave whole that go by the order of the last of them: the first two have lost that of training and
    found their own."""
    own = GatheredWeights(
        trace=walk.evaluated[-1],
        zero=walk.sizes,
        num_ranks=walk.num_ranks,
        wrappers=walk.wrappers,
        offloads=walk.num_ranks == 1,
    )
    own.begin_evaluation(secondary_among=walk.secondary_among)
    _evaluate(own, walk.evaluated[-1:])
    return own.whole_weights


def _through(gathered: GatheredWeights, events: Iterable[WeightUse], run: Run) -> None:
    for event in events:
        notify(gathered, event, run)


def _phase(
    gathered: GatheredWeights,
    runs: Iterable[tuple[Run, Section]],
    uses: Callable[[Section], Iterable[WeightUse]],
    start: EventBytes | None = None,
) -> PhaseGathers:
    sent = gathered.sent[start is not None]
    before = sent.after(GatherCounts())
    live: list[RunBytes] = [live_in_run(gathered, uses(section), run) for run, section in runs]
    if start is not None:
        gathered.end_backward()
    return PhaseGathers(sent.after(before), live, gathered.live_bytes, start or (0, 0, []))
