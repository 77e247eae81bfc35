"""Equal layers in a schedule, of which a walk over gathered weights may leave most out.

A stretch is a part of the schedule that repeats itself: the same uses of weights of the same sizes, layer after layer.
What ZeRO-3 gathers depends on the order of modules ahead and on the distance to a weight's next use. Once its state is
the same before two layers that follow each other and after them, it is the same before and after every layer between
(``walk``), so that one of them says what each of them does.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast

from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.reference import is_of_copy
from vlmplan.architecture.trace import Drop, Event, Fetch, Hold, Prefetch, Release, Run, Section, Trace, WeightUse
from vlmplan.engines.coordinator.records import Key, Passed, passed_by

MORE_BEFORE, MORE_AFTER = 2, 3
"""Periods of a stretch that are walked through before and after those left out, beside those that weights stay whole or
are prefetched for. A choice: where it is too few, all are walked through."""
MAX_PERIOD = 6


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a shortened schedule. ``cut`` is the place before which ``num_omitted`` periods are left out, each
    of ``period`` runs like those just before it and just after."""

    start: int
    stop: int
    cut: int
    period: int
    num_omitted: int

    @property
    def edges(self) -> tuple[int, int, int]:
        """The cut, and a period before and after it."""
        return self.cut - self.period, self.cut, self.cut + self.period


WEIGHT_USES = frozenset((Fetch, Release, Prefetch, Hold, Drop))


def of_weights(events: Iterable[Event]) -> list[WeightUse]:
    return cast(list[WeightUse], [event for event in events if type(event) in WEIGHT_USES])


class SectionUses(NamedTuple):
    """How a section uses weights, in forward and in backward; ``kind`` is equal for sections that use weights of the
    same sizes in the same way."""

    forward: list[WeightUse]
    backward: list[WeightUse]
    kind: Any


def section_uses(section: Section) -> SectionUses:
    """Found once for all walks through the section."""
    if section_uses not in section.memo:
        forward, backward = of_weights(section.forward), of_weights(section.backward)
        section.memo[section_uses] = SectionUses(forward, backward, _kind(forward, backward))
    return section.memo[section_uses]


def shortened(trace: Trace, reach: int) -> tuple[list[Run], list[Stretch]]:
    """The schedule without most of its equal layers, and where they were. ``reach``: elements of weights that may be
    whole at a time."""
    numbers: dict[Hashable, int] = {}
    uses = {key: section_uses(section) for key, section in trace.sections.items()}
    kinds = {key: numbers.setdefault(one.kind, len(numbers)) for key, one in uses.items()}
    numels = {key: _numel(one) for key, one in uses.items()}
    schedule: list[Run] = []
    stretches: list[Stretch] = []
    copied = 0
    for start, stop, period in _repeats([None if run.layer is None else kinds[run.key] for run in trace.schedule]):
        numel = sum([numels[run.key] for run in trace.schedule[start : start + period]])
        num_reached = -(-reach // numel) if numel else 0
        before, after = num_reached + MORE_BEFORE, num_reached + MORE_AFTER
        num_omitted = (stop - start) // period - before - after
        if num_omitted < 1:
            continue
        cut = start + before * period
        schedule += trace.schedule[copied:cut]
        copied = cut + num_omitted * period
        place = len(schedule)
        end = place + stop - copied
        stretches.append(Stretch(place - before * period, end, cut=place, period=period, num_omitted=num_omitted))
    return schedule + trace.schedule[copied:], stretches


def _repeats(kinds: list[int | None]) -> Iterator[tuple[int, int, int]]:
    """(start, stop, period) of the parts of ``kinds`` that repeat themselves often enough; None is like nothing.

    >>> list(_repeats([7, 5, 5, 5, 5, 5, 5, None]))
    [(1, 7, 1)]
    """
    least = MORE_BEFORE + MORE_AFTER + 1
    start = 0
    while start < len(kinds):
        ends = ((_end(kinds, start, period), period) for period in range(1, MAX_PERIOD + 1))
        stop, period = next(((end, period) for end, period in ends if end - start >= least * period), (start + 1, 0))
        if period:
            yield start, stop, period
        start = stop


def _end(kinds: list[int | None], start: int, period: int) -> int:
    """The place where what begins at ``start`` ceases to repeat itself."""
    stop = start
    while (
        stop < len(kinds) and kinds[stop] is not None and (stop < start + period or kinds[stop] == kinds[stop - period])
    ):
        stop += 1
    return stop


def _kind(forward: Iterable[WeightUse], backward: Iterable[WeightUse]) -> Any:
    """See ``SectionUses``."""
    numbers: dict[Hashable, int] = {}
    sizes: list[Any] = []

    def number(one: Any, about: Any = None) -> int:
        if one not in numbers:
            numbers[one] = len(numbers)
            sizes.append(about)
        return numbers[one]

    def parameter(one: Any) -> int:
        return number(id(one), (one.numel, one.dtype.num_bytes, one.requires_grad))

    def module(one: Any) -> int:
        weights = tuple(parameter(own) for own in one.parameters_by_name.values())
        return number(id(one), (one.reads_head, weights))

    def event(one: WeightUse) -> Any:
        if isinstance(one, Fetch):
            return None, one.before, module(one.module)
        if isinstance(one, Release):
            return module(one.module), one.ends_recomputation
        if isinstance(one, Prefetch):
            return None, one.times, None
        if isinstance(one, Hold):
            return number(("view", one.handle)), None, parameter(one.parameter)
        return number(("view", one.handle)), None

    return tuple([event(one) for one in forward]), tuple([event(one) for one in backward]), tuple(sizes)


def places_of(trace: Trace) -> dict[Key, tuple[int, int]]:
    """Places of modules and weights that layers use, by key: the place of the run in the schedule, and which of its
    modules and weights they are."""
    used = {key: _used(section_uses(section)) for key, section in trace.sections.items()}
    return {
        (id(one), run.layer): (place, ordinal)
        for place, run in enumerate(trace.schedule)
        if run.layer is not None
        for ordinal, one in enumerate(used[run.key])
    }


def _numel(uses: SectionUses) -> int:
    """Elements of the modules that are used, as often as they are in forward, without those of leaves, which are not
    counted between two uses of others' weights."""
    modules = [event.module for event in uses.forward if isinstance(event, Fetch)]
    counted = [module for module in modules if not module.is_leaf]
    return sum([parameter.numel for module in counted or modules for parameter in module.parameters_by_name.values()])


def _used(uses: SectionUses) -> list[Any]:
    """The modules of a section with their weights, in the order of first use."""
    modules = {id(event.module): event.module for event in uses.forward + uses.backward if isinstance(event, Fetch)}
    return [one for module in modules.values() for one in (module, *module.parameters_by_name.values())]


def omitted_elements(
    schedule: Sequence[Run], stretches: Sequence[Stretch], uses: Mapping[str, SectionUses]
) -> dict[int, Passed]:
    """Elements of the modules that are left out before a step."""
    omitted: dict[int, Passed] = {}
    starts = first_steps(schedule, uses)
    for stretch in stretches:
        runs = [uses[run.key] for run in schedule[stretch.cut - stretch.period : stretch.cut]]
        for phase in (0, 1):
            modules = [event.module for run in runs for event in run[phase] if isinstance(event, Fetch)]
            numels = [_passed(module) for module in modules]
            own, whole = (stretch.num_omitted * sum([one[is_leaf] for one in numels]) for is_leaf in (False, True))
            omitted[starts[phase][stretch.cut]] = own, whole
    return omitted


def first_steps(schedule: Sequence[Run], uses: Mapping[str, SectionUses]) -> tuple[list[int], list[int]]:
    """The first step of each place in forward, and that of the places below it in backward. Those of a second model
    come behind all others."""
    forward, backward = (
        {key: sum([isinstance(event, Fetch) for event in one[phase]]) for key, one in uses.items()} for phase in (0, 1)
    )
    before = list(accumulate([0 if is_of_copy(run) else forward[run.key] for run in schedule], initial=0))
    after = list(accumulate([backward[run.key] for run in reversed(schedule)], initial=before[-1]))
    of_copy = list(accumulate([forward[run.key] for run in schedule if is_of_copy(run)], initial=after[-1]))
    first = iter(of_copy)
    before = [next(first) if is_of_copy(run) else step for run, step in zip(schedule, before, strict=False)]
    return [*before, of_copy[-1]], after[::-1]


def _passed(module: WeightUser) -> Passed:
    numel = sum([one.numel for one in module.parameters_by_name.values()])
    return passed_by(numel, is_leaf=module.is_leaf)
