"""What bounds of memory need to know of one micro batch: the few numbers of a trace that depend on no engine."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from vlmplan.architecture.trace import Drop, Event, GradientReady, Hold, Kind, Run, Section, Span, Trace
from vlmplan.engines.optimizer_states import NORM_BYTES


class MicroBatchProfile(NamedTuple):
    """Bytes of one micro batch beside the model states.

    ``dropped_peak``: backward if every gradient vanished once it is whole; ``kept_peak``: if all stayed.
    ``held_bytes``: weights that autograd's views keep whole where ZeRO-3 takes them away. ``unreleased_bytes``: weights
    of modules that stay whole to the end of backward. ``recomputed_bytes``: frozen weights of a layer that runs again.
    ``norm_peak``: the most with the float64 norm of one whole gradient, which an engine takes when a later one arrives
    or when backward is over. ``gradient_bytes``: all gradients that arrive; a weight that nothing depends on has none.
    ``kept_bytes``: what the training loop holds of it through the step.
    """

    forward_peak: int
    dropped_peak: int
    kept_peak: int
    held_bytes: int
    unreleased_bytes: int
    recomputed_bytes: int
    norm_peak: int
    gradient_bytes: int
    kept_bytes: int

    @staticmethod
    def of_forward(peak: int) -> "MicroBatchProfile":
        """A forward that no backward follows, of ``peak`` bytes."""
        none = dict.fromkeys(MicroBatchProfile._fields, 0)
        return MicroBatchProfile(**(none | {"forward_peak": peak}))


class Rise(NamedTuple):
    """One phase of a section: peaks without gradients and with those that it makes, its change without them, and their
    bytes."""

    peak: int
    kept_peak: int
    change: int
    gradient_bytes: int


class Norms(NamedTuple):
    """Bytes of the norms of a section's gradients: the most of a norm with what is live when a later one of them
    arrives, largest norm, most that is live as one arrives, itself included."""

    within: int
    largest: int
    highest: int


class SectionRises(NamedTuple):
    """What a section adds to the micro batch, wherever it runs. ``logits_change``: bytes of logits that it leaves when
    backward is over. ``has_views``: autograd holds views of its weights."""

    forward: Rise
    backward: Rise
    norms: Norms
    logits_change: int
    has_views: bool


def section_rises(section: Section) -> SectionRises:
    """Found once for all traces that have the section."""
    if section_rises not in section.memo:
        section.memo[section_rises] = SectionRises(
            _rise(section.forward),
            _rise(section.backward),
            _norms(section.backward),
            _logits_change(section.forward) + _logits_change(section.backward),
            any(isinstance(event, Hold) for event in section.forward),
        )
    return section.memo[section_rises]


Repeats = Sequence[tuple[str, int]]
"""A schedule by what follows itself: the section, and how often it runs, one layer after the other."""


def _repeats(schedule: Iterable[Run]) -> Repeats:
    return [(key, len(list(runs))) for key, runs in groupby(schedule, itemgetter(0))]


def _highest(first: int, change: int, times: int) -> int:
    """The highest of so many moments of which the first is this, and each ``change`` above the one before."""
    return first + max(0, (times - 1) * change)


def forward_rise(trace: Trace) -> tuple[int, int]:
    """(the highest moment of the forward, what is live at its end)."""
    return _forward_rise(trace, _repeats(trace.schedule))


def _forward_rise(trace: Trace, repeats: Repeats) -> tuple[int, int]:
    live = peak = 0
    for key, times in repeats:
        rise = section_rises(trace.sections[key]).forward
        peak = max(peak, _highest(live + rise.peak, rise.change, times))
        live += times * rise.change
    return peak, live


def micro_batch_profile(trace: Trace) -> MicroBatchProfile:
    rises = {key: section_rises(section) for key, section in trace.sections.items()}
    repeats = _repeats(trace.schedule)
    forward_peak, live = _forward_rise(trace, repeats)
    dropped = kept = gradients = 0
    for key, times in reversed(repeats):
        rise = rises[key].backward
        dropped = max(dropped, _highest(live + rise.peak, rise.change, times))
        growth = rise.change + rise.gradient_bytes
        kept = max(kept, _highest(live + gradients + rise.kept_peak, growth, times))
        live += times * rise.change
        gradients += times * rise.gradient_bytes
    unreleased = sum([times * trace.sections[key].unreleased_bytes for key, times in repeats])
    recomputed = max(section.recomputed_bytes for section in trace.sections.values())
    held = _held_bytes(trace) if any(found.has_views for found in rises.values()) else 0
    norm = _norm_peak(repeats, rises, live)
    left_logits = sum([times * rises[key].logits_change for key, times in repeats]) + _logits_change(trace.after)
    return MicroBatchProfile(
        forward_peak=forward_peak,
        dropped_peak=dropped,
        kept_peak=kept,
        held_bytes=held,
        unreleased_bytes=unreleased,
        recomputed_bytes=recomputed,
        norm_peak=norm,
        gradient_bytes=gradients,
        kept_bytes=trace.kept_bytes + left_logits,
    )


def _norm_peak(repeats: Repeats, rises: Mapping[str, SectionRises], live: int) -> int:
    """Walks back from the end of backward, when ``live`` bytes are left beside gradients."""
    most, later = 0, live
    for key, times in repeats:
        backward, norms = rises[key].backward, rises[key].norms
        first, change = live - backward.change, -backward.change
        if times > 1:  # the first of these layers meets gradients of the others, which arrive later
            later = max(later, _highest(first, change, times - 1) + norms.highest)
        most = max(most, _highest(first, change, times) + norms.within, later + norms.largest)
        live += times * change
        later = max(later, live + norms.highest)
    return most


def _norms(events: Iterable[Event]) -> Norms:
    live = within = largest = highest = 0
    for event in events:
        if isinstance(event, Span):
            live += sum(event.delta)
        elif isinstance(event, GradientReady):
            within, highest = max(within, live + largest), max(highest, live)
            if event.part.is_last:
                largest = max(largest, NORM_BYTES * event.parameter.numel)
            live -= _freed_bytes(event)
    return Norms(within, largest, highest)


def _held_bytes(trace: Trace) -> int:
    """The most that views of weights keep at a time."""
    views: dict[int, int] = {}
    rises = {key: _views_rise(section.forward, views) for key, section in trace.sections.items()}
    falls = {key: _views_rise(section.backward, views) for key, section in trace.sections.items()}
    live = most = 0
    for peak, change in (
        *(rises[run.key] for run in trace.schedule),
        *(falls[run.key] for run in reversed(trace.schedule)),
    ):
        most, live = max(most, live + peak), live + change
    return most


def _views_rise(events: Iterable[Event], views: dict[int, int]) -> tuple[int, int]:
    """(peak, change) of the bytes that views hold over a section; ``views`` are those that were made, by handle."""
    live = peak = 0
    for event in events:
        if isinstance(event, Hold):
            views[event.handle] = event.parameter.numel * event.parameter.dtype.num_bytes
            live += views[event.handle]
            peak = max(peak, live)
        elif isinstance(event, Drop):
            live -= views[event.handle]
    return peak, live


def _rise(events: Iterable[Event]) -> Rise:
    live = peak = kept_peak = gradients = 0
    for event in events:
        if isinstance(event, Span):
            high = live + sum(event.peak)
            peak, kept_peak = max(peak, high), max(kept_peak, high + gradients)
            live += sum(event.delta)
        elif isinstance(event, GradientReady):
            live -= _freed_bytes(event)
            gradients += event.num_bytes if event.part.is_last else 0
    return Rise(peak, kept_peak, live, gradients)


def _logits_change(events: Iterable[Event]) -> int:
    return sum([event.delta[Kind.LOGITS] for event in events if isinstance(event, Span)])


def _freed_bytes(event: GradientReady) -> int:
    """What goes if a gradient vanishes once it is whole: its first part stays, and later ones are added to it."""
    is_first, is_last = event.part
    return (0 if is_first and not is_last else event.num_bytes) + (event.num_bytes if is_last and not is_first else 0)


def between(low: MicroBatchProfile, high: MicroBatchProfile, fraction: float) -> MicroBatchProfile:
    """The profile of a batch between two others: peaks are maxima of lines in the batch, so the secant is above."""

    def secant(a: int, b: int) -> int:
        return a + -(-round((b - a) * fraction * 1024) // 1024)

    return MicroBatchProfile(
        forward_peak=secant(low.forward_peak, high.forward_peak),
        dropped_peak=secant(low.dropped_peak, high.dropped_peak),
        kept_peak=secant(low.kept_peak, high.kept_peak),
        held_bytes=max(low.held_bytes, high.held_bytes),
        unreleased_bytes=max(low.unreleased_bytes, high.unreleased_bytes),
        recomputed_bytes=max(low.recomputed_bytes, high.recomputed_bytes),
        norm_peak=secant(low.norm_peak, high.norm_peak),
        gradient_bytes=max(low.gradient_bytes, high.gradient_bytes),
        kept_bytes=secant(low.kept_bytes, high.kept_bytes),
    )
