"""What bounds of memory need to know of one micro batch: the few numbers of a trace that depend on no engine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vlmplan.architecture.trace import Drop, Event, GradientReady, Hold, Span, Trace
from vlmplan.engines.optimizer_states import NORM_BYTES


@dataclass(frozen=True, slots=True)
class MicroBatchProfile:
    """Bytes of one micro batch beside the model states.

    ``dropped_peak``: backward if every gradient vanished once it is whole; ``kept_peak``: if all stayed.
    ``held_bytes``: weights that autograd's views keep whole where ZeRO-3 takes them away. ``unreleased_bytes``: weights
    of modules that stay whole to the end of backward. ``recomputed_bytes``: frozen weights of a layer that runs again.
    ``norm_peak``: the most with the float64 norm of one whole gradient, which an engine takes when a later one arrives
    or when backward is over. ``gradient_bytes``: all gradients that arrive; a weight that nothing depends on has none.
    """

    forward_peak: int
    dropped_peak: int
    kept_peak: int
    held_bytes: int
    unreleased_bytes: int
    recomputed_bytes: int
    norm_peak: int
    gradient_bytes: int


def micro_batch_profile(trace: Trace) -> MicroBatchProfile:
    live = forward_peak = 0
    rises = {key: rise(section.forward) for key, section in trace.sections.items()}
    for run in trace.schedule:
        peak, _, delta, _ = rises[run.key]
        forward_peak = max(forward_peak, live + peak)
        live += delta
    falls = {key: rise(section.backward) for key, section in trace.sections.items()}
    dropped = kept = gradients = 0
    for run in reversed(trace.schedule):
        peak, kept_peak, delta, ready = falls[run.key]
        dropped, kept = max(dropped, live + peak), max(kept, live + gradients + kept_peak)
        live += delta
        gradients += ready
    unreleased = sum([trace.sections[run.key].unreleased_bytes for run in trace.schedule])
    recomputed = max(section.recomputed_bytes for section in trace.sections.values())
    norm = _norm_peak(trace, {key: change for key, (_, _, change, _) in falls.items()}, live)
    return MicroBatchProfile(forward_peak, dropped, kept, _held_bytes(trace), unreleased, recomputed, norm, gradients)


def _norm_peak(trace: Trace, changes: Mapping[str, int], live: int) -> int:
    """Walks back from the end of backward, when ``live`` bytes are left; ``changes`` are those over each section, both
    without gradients."""
    norms = {key: _norms(section.backward) for key, section in trace.sections.items()}
    most, later = 0, live
    for run in trace.schedule:
        live -= changes[run.key]
        within, largest, highest = norms[run.key]
        most = max(most, live + within, later + largest)
        later = max(later, live + highest)
    return most


def _norms(events: Iterable[Event]) -> tuple[int, int, int]:
    """Of the gradients of a section: (most bytes of a norm with what is live when a later one of them arrives, largest
    norm, most that is live as one arrives, itself included)."""
    live = within = largest = highest = 0
    for event in events:
        if isinstance(event, Span):
            live += sum(event.delta)
        elif isinstance(event, GradientReady):
            within, highest = max(within, live + largest), max(highest, live)
            largest = max(largest, NORM_BYTES * event.parameter.numel)
            live -= event.num_bytes
    return within, largest, highest


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


def rise(events: Iterable[Event]) -> tuple[int, int, int, int]:
    """(peak without gradients, peak with those of the section, change without them, bytes of them) of a section."""
    live = peak = kept_peak = gradients = 0
    for event in events:
        if isinstance(event, Span):
            high = live + sum(event.peak)
            peak, kept_peak = max(peak, high), max(kept_peak, high + gradients)
            live += sum(event.delta)
        elif isinstance(event, GradientReady):
            live -= event.num_bytes
            gradients += event.num_bytes
    return peak, kept_peak, live, gradients


def between(low: MicroBatchProfile, high: MicroBatchProfile, fraction: float) -> MicroBatchProfile:
    """The profile of a batch between two others: peaks are maxima of lines in the batch, so the secant is above."""

    def secant(a: int, b: int) -> int:
        return a + -(-round((b - a) * fraction * 1024) // 1024)

    return MicroBatchProfile(
        secant(low.forward_peak, high.forward_peak),
        secant(low.dropped_peak, high.dropped_peak),
        secant(low.kept_peak, high.kept_peak),
        max(low.held_bytes, high.held_bytes),
        max(low.unreleased_bytes, high.unreleased_bytes),
        max(low.recomputed_bytes, high.recomputed_bytes),
        secant(low.norm_peak, high.norm_peak),
        max(low.gradient_bytes, high.gradient_bytes),
    )
