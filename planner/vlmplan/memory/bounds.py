"""Bounds of the memory timeline in closed form, for searching many clusters.

``MicroBatchProfile`` keeps from one trace the few numbers that do not depend on ranks or sizes; ``peak_bound`` adds
what an engine can hold at most, ``peak_floor`` what it holds at least. ``gathered_bounds`` are closer ones for stage 3.
What fits by the first fits, what does not by the second does not, and what lies between is for the timeline to say.
Tests hold it between them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from vlmplan.architecture.trace import Drop, Event, GradientReady, Hold, Span, Trace
from vlmplan.memory.engines import NORM_BYTES, ModelStates
from vlmplan.memory.gather_walk import LiveBytes, gather_walk
from vlmplan.memory.gathering import num_wrappers
from vlmplan.memory.parameters import ParameterTable
from vlmplan.memory.timeline import STAGE0_CHUNK_ELEMENTS, cached_casts, gathers_weights
from vlmplan.recipe import Offload, Recipe


@dataclass(frozen=True, slots=True)
class MicroBatchProfile:
    """Bytes of one micro batch beside the model states.

    ``dropped_peak``: backward if every gradient vanished once it is whole; ``kept_peak``: if all stayed.
    ``held_bytes``: weights that autograd's views keep whole where ZeRO-3 takes them away. ``unreleased_bytes``: weights
    of modules that stay whole to the end of backward. ``recomputed_bytes``: frozen weights of a layer that runs again.
    ``norm_peak``: the most with the float64 norm of one whole gradient, which an engine takes when a later one arrives
    or when backward is over.
    """

    forward_peak: int
    dropped_peak: int
    kept_peak: int
    held_bytes: int
    unreleased_bytes: int
    recomputed_bytes: int
    norm_peak: int


def micro_batch_profile(trace: Trace) -> MicroBatchProfile:
    live = forward_peak = 0
    rises = {key: _rise(section.forward) for key, section in trace.sections.items()}
    for run in trace.schedule:
        peak, _, delta, _ = rises[run.key]
        forward_peak = max(forward_peak, live + peak)
        live += delta
    falls = {key: _rise(section.backward) for key, section in trace.sections.items()}
    dropped = kept = gradients = 0
    for run in reversed(trace.schedule):
        peak, kept_peak, delta, ready = falls[run.key]
        dropped, kept = max(dropped, live + peak), max(kept, live + gradients + kept_peak)
        live += delta
        gradients += ready
    unreleased = sum([trace.sections[run.key].unreleased_bytes for run in trace.schedule])
    recomputed = max(section.recomputed_bytes for section in trace.sections.values())
    norm = _norm_peak(trace, {key: change for key, (_, _, change, _) in falls.items()}, live)
    return MicroBatchProfile(forward_peak, dropped, kept, _held_bytes(trace), unreleased, recomputed, norm)


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


def _rise(events: Iterable[Event]) -> tuple[int, int, int, int]:
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
    )


def peak_bound(
    table: ParameterTable,
    recipe: Recipe,
    states: ModelStates,
    profile: MicroBatchProfile,
    *,
    num_ranks: int,
    owned_bytes: int,
    accumulates: bool,
    micro_batch_bytes: int | None = None,
) -> int:
    """At least the highest moment of the timeline.

    ``owned_bytes``: gradients that reach into the rank's partition; ``accumulates``: a step has several micro batches;
    ``micro_batch_bytes``: a closer bound of forward and backward, where there is one.
    """
    copies = states.copies.total
    if micro_batch_bytes is None:
        if recipe.zero_stage is None or recipe.zero_stage == 0:
            forward, backward = _whole_bounds(table, recipe, profile, accumulates=accumulates)
        elif recipe.zero_stage == 3:
            forward, backward = _sharded_bounds(table, recipe, profile, num_ranks)
        else:
            owned = 0 if recipe.offload_optimizer is not Offload.NONE else owned_bytes
            forward, backward = _bucketed_bounds(table, recipe, profile, owned, accumulates=accumulates)
        micro_batch_bytes = states.resident.total + copies + max(forward, backward)
    return max(
        micro_batch_bytes,
        states.step_peak.total + copies,
        states.init_peak.total + copies,
        _loading_bound(table, recipe, states),
    )


def peak_floor(states: ModelStates, profile: MicroBatchProfile, workspace_bytes: int) -> int:
    """At most the highest moment of the timeline beside libraries' workspaces: the model states, with the micro batch's
    own tensors or the update, without anything that gradients, buckets or gathered weights take meanwhile.

    While the engine is built there are no ``workspace_bytes`` yet.
    """
    copies = states.copies.total
    return copies + max(
        states.resident.total + max(profile.forward_peak, profile.dropped_peak),
        states.step_peak.total,
        states.init_peak.total - workspace_bytes,
    )


def gathered_bounds(
    table: ParameterTable, recipe: Recipe, states: ModelStates, trace: Trace, *, num_ranks: int
) -> tuple[int, int]:
    """(at most, at least) the highest moment of forward and backward under stage 3.

    As ``peak_floor`` and ``peak_bound``, but each run of a section with the weights that are whole while it runs, and
    not with the most that ever are.
    """
    walk = None
    if gathers_weights(recipe, num_ranks):
        walk = gather_walk(trace, recipe.zero, num_wrappers=num_wrappers(recipe), is_alone=num_ranks == 1)
    rises = {key: _rise(section.forward) for key, section in trace.sections.items()}
    falls = {key: _rise(section.backward) for key, section in trace.sections.items()}
    forward = [rises[run.key] for run in trace.schedule]
    backward = [falls[run.key] for run in reversed(trace.schedule)]
    live, forward_least, forward_most = _with_gathered(0, forward, None if walk is None else walk.forward.live)
    _, backward_least, backward_most = _with_gathered(live, backward, None if walk is None else walk.backward.live)
    padding = 0 if walk is None else walk.num_weights * num_ranks
    arriving = _arriving_shard_bytes(table, recipe, num_ranks)
    held = states.resident.total + states.copies.total
    most = held + max(forward_most, backward_most + _reduced_bytes(table, recipe)) + padding + arriving
    return most, held + max(forward_least, backward_least)


def _with_gathered(
    live: int, rises: Sequence[tuple[int, int, int, int]], gathered: Sequence[LiveBytes] | None
) -> tuple[int, int, int]:
    """(live bytes after all ``rises`` of sections, at least and at most the highest moment with the weights that are
    there meanwhile)."""
    least = most = 0
    for (peak, _, change, _), weights in zip(rises, gathered or repeat(LiveBytes(0, 0), len(rises)), strict=True):
        least, most = max(least, live + peak + weights.least), max(most, live + peak + weights.most)
        live += change
    return live, least, most


def _reduced_bytes(table: ParameterTable, recipe: Recipe) -> int:
    """Under stage 3 what gradients take beside the bucket on their way through it: one of them, the bucket's copy, and
    the shard that comes back for its norm where the host has it."""
    p = table.trained_dtype.num_bytes
    largest = table.largest_trained * p
    shard = table.largest_trained if recipe.offload_optimizer is not Offload.NONE else 0
    return max(recipe.zero.reduce_bucket_size * p, largest) + largest + shard * (p + NORM_BYTES)


def _arriving_shard_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """The most that a rank's shards take on their way from the host to a collective."""
    if recipe.offload_params is Offload.NONE or num_ranks == 1:
        return 0
    width = max(2, table.trained_dtype.num_bytes)
    return (recipe.zero.stage3_prefetch_bucket_size * width + table.largest_module_bytes) // num_ranks


def _whole_bounds(
    table: ParameterTable, recipe: Recipe, profile: MicroBatchProfile, *, accumulates: bool
) -> tuple[int, int]:
    """(forward, backward) beside the states where every rank keeps all gradients: plain PyTorch and stage 0."""
    largest = table.largest_trained * table.trained_dtype.num_bytes
    accumulated = table.trained_bytes if accumulates else 0
    limit = STAGE0_CHUNK_ELEMENTS * table.trained_dtype.num_bytes
    chunk = 0 if recipe.zero_stage is None else min(table.trained_bytes, limit + largest)
    backward = max(profile.kept_peak, profile.dropped_peak + accumulated) + largest + chunk
    return profile.forward_peak + accumulated + sum(cached_casts(table, recipe)), backward


def _sharded_bounds(
    table: ParameterTable, recipe: Recipe, profile: MicroBatchProfile, num_ranks: int
) -> tuple[int, int]:
    """The same under stage 3: weights come whole and go, gradients pass through the bucket."""
    zero, p = recipe.zero, table.trained_dtype.num_bytes
    width, largest = max(2, p), table.largest_trained * table.trained_dtype.num_bytes
    kept = max(zero.stage3_max_live_parameters, zero.stage3_max_reuse_distance)
    live = kept + 2 * zero.stage3_prefetch_bucket_size
    one = 2 * table.largest_module_bytes if zero.stage3_prefetch_bucket_size else table.largest_gather_bytes
    gathered = min(live * width + one + profile.unreleased_bytes, 2 * table.num_params * width)
    again = profile.recomputed_bytes + largest  # and the trained weight that is used meanwhile
    more = profile.held_bytes + _arriving_shard_bytes(table, recipe, num_ranks)
    weights = (gathered + profile.recomputed_bytes if live else max(gathered, again)) + more
    backward = profile.dropped_peak + weights + _reduced_bytes(table, recipe)
    return profile.forward_peak + gathered + more, backward


def _bucketed_bounds(
    table: ParameterTable, recipe: Recipe, profile: MicroBatchProfile, owned: int, *, accumulates: bool
) -> tuple[int, int]:
    """The same under stages 1 and 2; ``owned`` bytes of gradients stay on the GPU for the rank's partition."""
    p, largest = table.trained_dtype.num_bytes, table.largest_trained * table.trained_dtype.num_bytes
    buckets = (2 if recipe.zero.overlap_comm else 1) * recipe.zero.reduce_bucket_size * p
    copied = max(recipe.zero.reduce_bucket_size * p, largest)
    if recipe.zero_stage == 1:
        accumulated = table.trained_bytes if accumulates else 0
        kept = max(profile.kept_peak, profile.dropped_peak + accumulated, table.trained_bytes + copied)
        if recipe.offload_optimizer is not Offload.NONE:
            kept += NORM_BYTES * table.largest_trained  # the norm of a gradient before it goes to the host
        return profile.forward_peak + accumulated + (buckets if accumulated else 0), kept + buckets + owned + largest
    earlier = owned if accumulates else 0
    highest = profile.dropped_peak + copied
    if recipe.offload_optimizer is not Offload.NONE:
        highest = max(highest, profile.norm_peak)
    return profile.forward_peak + earlier, highest + buckets + owned + earlier + largest


def _loading_bound(table: ParameterTable, recipe: Recipe, states: ModelStates) -> int:
    """At least the highest moment of ``timeline.loading``, but for the checkpoint that a CPU rank reads."""
    if recipe.zero_stage != 3:
        return table.total_bytes + table.largest_bytes
    tied = table.tied_numel * recipe.precision.dtype.num_bytes
    adapters = table.trained_bytes if recipe.trains_adapters else 0
    return states.at_start.weights + states.copies.weights + tied + max(table.largest_module_bytes, adapters)
