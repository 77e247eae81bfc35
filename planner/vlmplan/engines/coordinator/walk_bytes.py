"""Bytes of gathered weights while a micro batch runs: of each event about them, of runs, phases and all of it."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from vlmplan.architecture.trace import Fetch, Prefetch, Run, WeightUse
from vlmplan.engines.coordinator.counts import GatherCounts
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights, notify

EventBytes = tuple[int, int, Sequence[tuple[int, int]]]
"""Of one event about weights: the bytes after it, the most during it, and for each gather the bytes just after it and
those of its buffer (``GatheredWeights.gathers``)."""


class RunBytes(NamedTuple):
    """Bytes of gathered weights while a section runs: at its ``start``, and beyond these the fewest, the most, and
    those of every event about weights."""

    start: int
    least_change: int
    most_change: int
    changes: Sequence[EventBytes]

    @property
    def least(self) -> int:
        return self.start + self.least_change

    @property
    def most(self) -> int:
        return self.start + self.most_change

    @property
    def end(self) -> int:
        """The bytes when the run is over."""
        return self.start + (self.changes[-1][0] if self.changes else 0)

    def plus(self, num_bytes: int) -> "RunBytes":
        return self._replace(start=self.start + num_bytes)


NOTHING_GATHERED = RunBytes(0, 0, 0, ())


class PhaseGathers(NamedTuple):
    """The collectives of forward or of backward, for each run of a section, as they follow each other, what is live
    meanwhile, and what is ``left`` when the phase is over. ``start`` is the event before the first run, with all bytes:
    backward begins with modules that have no weights, and prefetches for them; forward behind an evaluation with what
    arrives that its last forward has asked for."""

    sent: GatherCounts
    live: list[RunBytes]
    left: int
    start: EventBytes = (0, 0, ())

    def through(self, schedule: Iterable[Run], busy: Collection[str], live_bytes: int) -> "PhaseGathers":
        """These gathers with all runs of ``schedule``, of which these are the ``busy`` ones. ``live_bytes`` at the
        start."""
        own, live = iter(self.live), list[RunBytes]()
        for run in schedule:
            live.append(next(own) if run.key in busy else RunBytes(live_bytes, 0, 0, []))
            live_bytes = live[-1].end
        return self._replace(live=live)


class GatherWalk(NamedTuple):
    """``num_weights`` are those that come and go: what a rank's share is padded by for each depends on the ranks.
    ``never_freed`` are the bytes of whole weights that are still live when the optimizer's step has begun."""

    forward: PhaseGathers
    backward: PhaseGathers
    num_weights: int
    never_freed: int

    def takes_more_than(self, other: "GatherWalk", num_bytes: int) -> bool:
        """Whether at any event more is live than in ``other``, a walk over the same trace, and ``num_bytes``."""
        phases = (self.forward, other.forward), (self.backward, other.backward)
        if self.backward.start[1] > other.backward.start[1] + num_bytes:
            return True
        for one, another in chain.from_iterable(zip(own.live, others.live, strict=True) for own, others in phases):
            least = num_bytes + another.start - one.start
            if one.most_change > least and any(
                change[1] > least + changed[1] for change, changed in zip(one.changes, another.changes, strict=True)
            ):
                return True
        return False

    def through(self, schedule: Sequence[Run], busy: Collection[str]) -> "GatherWalk":
        """The phase with all runs of ``schedule``, of which these are the ``busy`` ones."""
        forward = self.forward.through(schedule, busy, self.forward.live[0].start if self.forward.live else 0)
        backward = self.backward.through(schedule[::-1], busy, self.backward.start[0])
        return self._replace(forward=forward, backward=backward)


def live_in_run(gathered: GatheredWeights, events: Iterable[WeightUse], run: Run) -> RunBytes:
    """Bytes of gathered weights while a section runs whose uses of weights are ``events``."""
    start = least = most = before = gathered.live_bytes
    unchanged: EventBytes = (0, 0, ())
    changes: list[EventBytes] = []
    for event in events:
        gathers: Sequence[tuple[int, int]] = ()
        if type(event) is Fetch:
            highest, gathers = gathered.fetch(event.before), gathered.gathers
            after = gathered.live_bytes
        elif type(event) is Prefetch:
            highest, gathers = gathered.prefetch(event.times), gathered.gathers
            after = gathered.live_bytes
        else:
            highest = notify(gathered, event, run)
            after = gathered.live_bytes
        if highest == after == before and not gathers:
            changes.append(unchanged)
            continue
        before = after
        if highest > most:
            most = highest
        if after < least:
            least = after
        unchanged = (after - start, after - start, ())
        if gathers:
            changes.append((after - start, highest - start, [(one - start, flat) for one, flat in gathers]))
        else:
            changes.append((after - start, highest - start, ()))
    return RunBytes(start, least - start, most - start, changes)
