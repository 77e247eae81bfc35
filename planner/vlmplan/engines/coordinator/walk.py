"""What ZeRO-3 gathers in a micro batch, found by walking through it once: collectives, and bytes of whole weights.

A walk looks at nothing but the weights, so one serves all traces that use weights of the same sizes in the same
order, whatever the batch or the kind of 16-bit numbers.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from vlmplan.architecture.trace import Run, Trace
from vlmplan.engines.coordinator.counts import GatherCounts
from vlmplan.engines.coordinator.first_pass import (
    NOTHING_DECIDED,
    Decided,
    FirstPass,
    begin_after_recording,
    first_decisions,
)
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights
from vlmplan.engines.coordinator.module_order import SmallWeights
from vlmplan.engines.coordinator.records import Decisions, Key
from vlmplan.engines.coordinator.repeated_layers import (
    Stretch,
    first_steps,
    omitted_elements,
    places_of,
    section_uses,
    shortened,
)
from vlmplan.engines.coordinator.shapes import shape_of_uses
from vlmplan.engines.coordinator.walk_bytes import EventBytes, GatherWalk, PhaseGathers, RunBytes, live_in_run
from vlmplan.engines.coordinator.wrapper_modules import Wrappers
from vlmplan.recipe.zero import ZeroSettings


def gather_walk(
    trace: Trace,
    zero: ZeroSettings,
    *,
    wrappers: Wrappers,
    num_ranks: int = 2,
    secondary_among: int = 1,
    decided: Decided = NOTHING_DECIDED,
    small: SmallWeights = SmallWeights.WHOLE,
) -> GatherWalk:
    """A micro batch on ``num_ranks``; one that is alone brings weights from the host. ``secondary_among``: as the
    function of that name says of the recipe. ``small``: what small weights do in it; ``zero`` says what is not done in
    the first of a run.

    Any number of ranks above one sends the same, and has the same live but for what weights are padded by.
    """
    sizes, wrappers = what_decides(zero, wrappers)
    by = (num_ranks, secondary_among, decided.where_it_matters(trace, sizes), small)
    key = (gather_walk, sizes, wrappers, *by)
    if key not in trace.memo:
        busy = _busy(trace)
        walk = _walked(WalkKey(_shape(busy), sizes, wrappers, busy, *by)).walk
        trace.memo[key] = walk if busy is trace else walk.through(trace.schedule, busy.sections.keys())
    return trace.memo[key]


def what_decides(zero: ZeroSettings, wrappers: Wrappers) -> tuple[ZeroSettings, Wrappers]:
    """The parts of both that decide which weights are gathered when."""
    sizes = ZeroSettings(
        stage3_prefetch_bucket_size=zero.stage3_prefetch_bucket_size,
        stage3_param_persistence_threshold=zero.stage3_param_persistence_threshold,
        stage3_max_live_parameters=zero.stage3_max_live_parameters,
        stage3_max_reuse_distance=zero.stage3_max_reuse_distance,
    )
    if not sizes.stage3_prefetch_bucket_size:
        wrappers = Wrappers(lost=wrappers.lost)  # the others would only prefetch
    return sizes, wrappers


def _busy(trace: Trace) -> Trace:
    """``trace`` without sections that use no weights, such as a loss of its own: traces with and without them are
    alike in what they gather."""
    if _busy not in trace.memo:
        used = {key: section for key, section in trace.sections.items() if any(section_uses(section)[:2])}
        schedule = [run for run in trace.schedule if run.key in used]
        trace.memo[_busy] = trace if len(schedule) == len(trace.schedule) else Trace(used, schedule)
    return trace.memo[_busy]


@dataclass(frozen=True, slots=True)
class WalkKey:
    """How a trace uses weights, and what decides which of them are fetched when; equal walks gather the same."""

    shape: Any
    sizes: ZeroSettings
    wrappers: Wrappers
    trace: Trace = field(compare=False)
    num_ranks: int
    secondary_among: int = 1
    decided: Decided = NOTHING_DECIDED
    small: SmallWeights = SmallWeights.WHOLE

    @property
    def reach(self) -> int:
        """Elements that are whole at a time, roughly."""
        return max(self.sizes.stage3_max_live_parameters, self.sizes.stage3_max_reuse_distance)


def _shape(trace: Trace) -> Any:
    """What tells the walks over weights of two traces apart: modules, weights and views by the order of first use."""
    if _shape not in trace.memo:
        trace.memo[_shape] = shape_of_uses([trace])
    return trace.memo[_shape]


class _Walked(NamedTuple):
    """A walk, and what it has decided on the way through a schedule, which ``is_short`` where layers were left out."""

    walk: GatherWalk
    decisions: Decisions
    is_short: bool


@lru_cache(maxsize=32)
def _walked(walk: WalkKey) -> _Walked:
    schedule, stretches = shortened(walk.trace, walk.reach)
    if walk.decided != NOTHING_DECIDED:
        return _decided(walk, schedule, stretches)
    short = WalkedSchedule(walk, schedule, stretches)
    if short.is_like_whole:
        return _Walked(short.whole(), short.decisions, is_short=True)
    through_all = WalkedSchedule(walk, walk.trace.schedule, [])
    return _Walked(through_all.whole(), through_all.decisions, is_short=False)


def _decided(walk: WalkKey, schedule: Sequence[Run], stretches: Sequence[Stretch]) -> _Walked:
    """The walk with decisions that stand. Those of the micro batch before mostly are those that it would make itself;
    those of an evaluation are not, and no layers are left out."""
    by_evaluation = walk.decided.by_evaluation
    decisions = None if by_evaluation else _first_decisions(replace(walk, num_ranks=2, secondary_among=1))
    if decisions is not None:
        deciding = _walked(replace(walk, decided=NOTHING_DECIDED))
        if deciding.is_short and deciding.decisions == decisions:
            return deciding
        short = WalkedSchedule(walk, schedule, stretches, decisions)
        if short.is_like_whole:
            return _Walked(short.whole(), decisions, is_short=True)
    found = first_decisions(walk.trace, walk.sizes, walk.wrappers, walk.decided)
    return _Walked(WalkedSchedule(walk, walk.trace.schedule, [], found).whole(), found or {}, is_short=False)


@lru_cache(maxsize=32)
def _first_decisions(walk: WalkKey) -> Decisions | None:
    """Of the schedule without most of its equal layers; None where it does not tell what these decide."""
    schedule, stretches = shortened(walk.trace, walk.reach)
    trace = _of_schedule(walk.trace, schedule)
    uses = {key: section_uses(section) for key, section in trace.sections.items()}
    first = FirstPass(trace, walk.sizes, walk.wrappers, stretches, omitted_elements(schedule, stretches, uses))
    return first.decisions if first.repeats else None


class _Moment(NamedTuple):
    """The moment between two runs of sections: all that the next ones depend on, and what there was until then."""

    state: Hashable
    live_bytes: int
    next_prefetched_step: int
    num_small: int
    sent: GatherCounts


class WalkedSchedule:
    """A walk through a schedule with ``stretches``, forward and backward; places are indices into the schedule.

    Three moments are kept for each stretch and phase: where its cut is, and a period before and after that.
    """

    def __init__(
        self,
        walk: WalkKey,
        schedule: Sequence[Run],
        stretches: Sequence[Stretch],
        decisions: Decisions | None = None,
    ) -> None:
        """``decisions``: those that an earlier micro batch has made."""
        self._stretches = stretches
        self._size = len(schedule)
        trace = _of_schedule(walk.trace, schedule)
        uses = {key: section_uses(section) for key, section in trace.sections.items()}
        self._first_steps = first_steps(schedule, uses)
        self._places = places_of(trace) if stretches else {}
        self._gathered = GatheredWeights(
            trace=trace,
            zero=walk.sizes,
            num_ranks=walk.num_ranks,
            wrappers=walk.wrappers,
            offloads=walk.num_ranks == 1,
            omitted=omitted_elements(schedule, stretches, uses),
            secondary_among=walk.secondary_among,
            decisions={} if decisions is None else decisions,
            small=walk.small,
        )
        if walk.small is SmallWeights.WHOLE_AT_FIRST:
            self._gathered.begin_with_small()
        if walk.small is SmallWeights.STAY:
            begin_after_recording(self._gathered, trace, walk.sizes.stage3_param_persistence_threshold)
        self._live: tuple[list[RunBytes], list[RunBytes]] = ([], [])
        self._left: list[int] = []
        self._moments: dict[tuple[int, int], _Moment] = {}
        watched = {place: stretch for stretch in stretches for place in stretch.edges}
        self._start_of_backward: EventBytes = (0, 0, ())
        for phase, places in enumerate((range(self._size), reversed(range(self._size)))):
            if phase:
                most = self._gathered.begin_backward()
                self._start_of_backward = self._gathered.live_bytes, most, tuple(self._gathered.gathers)
            for place in places:
                run, edge = schedule[place], place + phase
                if edge in watched:
                    self._moments[phase, edge] = self._moment(watched[edge], edge, phase)
                    self._pass_small(watched[edge], edge, phase)
                events = uses[run.key].backward if phase else uses[run.key].forward
                self._live[phase].append(live_in_run(self._gathered, events, run))
            if phase:
                self._gathered.end_backward()
            self._left.append(self._gathered.live_bytes)
        self._small_bytes = self._gathered.small_bytes
        self._gathered.partition_all()

    def _moment(self, stretch: Stretch, edge: int, phase: int) -> _Moment:
        def name(key: Key) -> Hashable:
            place, ordinal = self._places.get(key, (-1, 0))
            return (place - edge, ordinal) if stretch.start <= place < stretch.stop else key

        gathered = self._gathered
        sent = gathered.sent[phase].after(GatherCounts())
        return _Moment(
            gathered.state(name), gathered.live_bytes, gathered.next_prefetched_step, gathered.num_small, sent
        )

    def _pass_small(self, stretch: Stretch, edge: int, phase: int) -> None:
        """At the cut the layers that are left out have gathered their small weights, which stay."""
        before = self._moments.get((phase, stretch.edges[2 * phase]))
        if edge == stretch.cut and before is not None:
            self._gathered.pass_small(stretch.num_omitted * (self._gathered.num_small - before.num_small))

    @property
    def decisions(self) -> Decisions:
        return self._gathered.decisions or {}

    @property
    def is_like_whole(self) -> bool:
        return all(self.repeats(stretch, phase) for stretch in self._stretches for phase in (0, 1))

    def repeats(self, stretch: Stretch, phase: int) -> bool:
        """Whether all periods that are left out go as the two around the cut do: these begin and end alike, and nothing
        beyond the stretch was looked at for them."""
        first, middle, last = self._around(stretch, phase)
        earlier, later = self._periods(stretch, phase)
        growth = middle.live_bytes - first.live_bytes
        end = self._first_steps[phase][stretch.start if phase else stretch.stop]
        return (
            first.state == middle.state == last.state
            and last.live_bytes - middle.live_bytes == growth
            and later == [live.plus(growth) for live in earlier]
            and middle.sent.after(first.sent) == last.sent.after(middle.sent)
            and last.next_prefetched_step < end
        )

    def _around(self, stretch: Stretch, phase: int) -> tuple[_Moment, _Moment, _Moment]:
        before, cut, after = (self._moments[phase, edge] for edge in stretch.edges)
        return (after, cut, before) if phase else (before, cut, after)

    def _periods(self, stretch: Stretch, phase: int) -> tuple[list[RunBytes], list[RunBytes]]:
        """What is live in the periods before and after the cut, in the order of the phase."""
        live, period = self._live[phase], stretch.period
        cut = self._size - stretch.cut if phase else stretch.cut
        return live[cut - period : cut], live[cut : cut + period]

    def whole(self) -> GatherWalk:
        """The walk with all that was left out."""
        forward, live_bytes = self._whole_phase(0, 0)
        backward, live_bytes = self._whole_phase(1, live_bytes)
        num_weights = len(self._gathered.weights)
        secondary, small = self._gathered.secondary_bytes, 0
        for stretch in self._stretches:
            period = range(stretch.cut - stretch.period, stretch.cut)
            used = [key for key in self._gathered.weights if self._places.get(key, (-1, 0))[0] in period]
            num_weights += stretch.num_omitted * len(used)
            secondary += stretch.num_omitted * self._gathered.secondary_bytes_of(used)
            small += stretch.num_omitted * sum([self._small_bytes.get(key, 0) for key in used])
        never_freed = self._gathered.live_bytes + live_bytes - secondary - small
        return GatherWalk(forward, backward, num_weights, never_freed)

    def _whole_phase(self, phase: int, more: int) -> tuple[PhaseGathers, int]:
        """A phase, and the bytes that are live at its end beyond those of the schedule as it was walked through;
        ``more``: these bytes at its beginning."""
        sent, done = self._gathered.sent[phase], 0
        after, most, gathers = self._start_of_backward if phase else (0, 0, ())
        start = after + more, most + more, [(one + more, flat) for one, flat in gathers]
        live: list[RunBytes] = []
        for stretch in reversed(self._stretches) if phase else self._stretches:
            cut = self._size - stretch.cut if phase else stretch.cut
            first, middle, _ = self._around(stretch, phase)
            earlier, _ = self._periods(stretch, phase)
            growth = middle.live_bytes - first.live_bytes
            sent = sent.plus(middle.sent.after(first.sent, stretch.num_omitted))
            live += [one.plus(more) for one in self._live[phase][done:cut]]
            for number in range(1, stretch.num_omitted + 1):
                live += [one.plus(more + number * growth) for one in earlier]
            more, done = more + stretch.num_omitted * growth, cut
        live += [one.plus(more) for one in self._live[phase][done:]]
        return PhaseGathers(sent, live, self._left[phase] + more, start), more


def _of_schedule(trace: Trace, schedule: Sequence[Run]) -> Trace:
    return Trace({run.key: trace.sections[run.key] for run in schedule}, list(schedule))
