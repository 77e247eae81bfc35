"""Bounds of the memory timeline in closed form, for searching many clusters.

``peak_bound`` adds to the numbers of one micro batch what an engine can hold at most, ``peak_floor`` what it holds at
least. ``gathered_bounds`` are closer ones for stage 3. What fits by the first fits, what does not by the second does
not, and what lies between is for the timeline to say. Tests hold it between them.
"""

from collections.abc import Sequence
from itertools import repeat

from vlmplan.architecture.trace import Trace
from vlmplan.engines.coordinator.first_pass import decided_before
from vlmplan.engines.coordinator.module_order import number_of_following, training_sizes
from vlmplan.engines.coordinator.secondary import secondary_among
from vlmplan.engines.coordinator.walk import gather_walk
from vlmplan.engines.coordinator.walk_bytes import NOTHING_GATHERED, GatherWalk, RunBytes
from vlmplan.engines.coordinator.wrapper_modules import wrappers
from vlmplan.engines.engine import Engine
from vlmplan.engines.model_states import ModelStates
from vlmplan.engines.profile import MicroBatchProfile, Rise, section_rises
from vlmplan.engines.zero3 import Zero3


def peak_bound(
    engine: Engine,
    states: ModelStates,
    profile: MicroBatchProfile,
    *,
    accumulates: bool,
    micro_batch_bytes: int | None = None,
) -> int:
    """An upper bound of the highest moment of the timeline of ``engine``, whose model states are ``states``.

    ``accumulates``: a step has several micro batches; ``micro_batch_bytes``: a closer bound of forward and backward,
    where there is one.
    """
    beside = states.beside.total
    if micro_batch_bytes is None:
        bounds = engine.micro_batch_bound(profile, accumulates=accumulates)
        micro_batch_bytes = states.resident.total + beside + max(bounds)
    return max(
        micro_batch_bytes,
        states.step_peak.total + beside + profile.kept_bytes,
        states.init_peak.total + beside,
        engine.loading_bound(states),
    )


def peak_floor(states: ModelStates, profile: MicroBatchProfile, workspace_bytes: int) -> int:
    """A lower bound of the highest moment of the timeline beside libraries' workspaces: the model states, with the
    micro batch's own tensors or the update, without anything that gradients, buckets, gathered weights or hpZ's
    secondary partitions of trained weights take meanwhile.

    While the engine is built there are no ``workspace_bytes`` yet.
    """
    other, beside = states.other_models.total, states.beside.total
    return max(
        states.resident.total + max(profile.forward_peak, profile.dropped_peak) + other,
        states.step_peak.total + beside,
        states.init_peak.total - workspace_bytes + beside,
    )


def gathered_bounds(engine: Zero3, states: ModelStates, trace: Trace) -> tuple[int, int]:
    """(at most, at least) the highest moment of forward and backward under stage 3.

    As ``peak_floor`` and ``peak_bound``, but each run of a section with the weights that are whole while it runs, and
    not with the most that ever are.
    """
    walk = None
    recipe, num_ranks = engine.recipe, engine.num_ranks
    held, among = states.resident.total + states.other_models.total, secondary_among(recipe)
    if engine.gathers_weights:
        walk = gather_walk(
            trace,
            training_sizes(recipe),
            wrappers=wrappers(recipe, engine.table),
            num_ranks=min(num_ranks, 2),
            secondary_among=among,
            decided=decided_before(recipe, engine.table),
        )
    least, most = _within(engine, trace, walk)
    padding = 0 if walk is None else walk.num_weights * num_ranks
    if walk is None or among == 1:
        held += states.secondary.total - engine.shards.small_secondary_bytes
    else:
        padding *= 2  # secondary partitions are among what is live
    for number in {0, number_of_following(recipe)}:
        early = engine.gather_replay_at_first(trace, number)
        if early is not None:  # its small weights are padded too
            most = max(most, _within(engine, trace, early.walk)[1] + early.walk.num_weights * num_ranks)
    beside_idle = engine.replay_beside_idle(trace)
    if beside_idle is not None:
        recording = _within(engine, trace, beside_idle.walk)[1] + beside_idle.walk.num_weights * num_ranks
        most = max(most, recording + states.secondary.total)
    return held + most + padding + engine.arriving_bound(), held + least


def _within(engine: Zero3, trace: Trace, walk: GatherWalk | None) -> tuple[int, int]:
    """(at least, at most) the highest moment of a micro batch beside what is there anyway, with the weights of
    ``walk``."""
    rises = {key: section_rises(section) for key, section in trace.sections.items()}
    forward = [rises[run.key].forward for run in trace.schedule]
    backward = [rises[run.key].backward for run in reversed(trace.schedule)]
    live, forward_least, forward_most = _with_gathered(0, forward, None if walk is None else walk.forward.live)
    start = 0 if walk is None else live + walk.backward.start[1]
    _, backward_least, backward_most = _with_gathered(live, backward, None if walk is None else walk.backward.live)
    return max(forward_least, backward_least), max(forward_most, start, backward_most + engine.reduction_bound())


def _with_gathered(live: int, rises: Sequence[Rise], gathered: Sequence[RunBytes] | None) -> tuple[int, int, int]:
    """(live bytes after all ``rises`` of sections, at least and at most the highest moment with the weights that are
    there meanwhile)."""
    least = most = 0
    for rise, weights in zip(rises, gathered or repeat(NOTHING_GATHERED, len(rises)), strict=True):
        least, most = max(least, live + rise.peak + weights.least), max(most, live + rise.peak + weights.most)
        live += rise.change
    return live, least, most
