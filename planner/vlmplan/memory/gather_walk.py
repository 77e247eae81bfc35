"""What ZeRO-3 gathers in a micro batch, found by walking through it once: collectives, and bytes of whole weights.

A walk looks at nothing but the weights, so one stands for all traces that use weights of the same sizes in the same
order, whatever the batch or the kind of 16-bit numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from vlmplan.architecture.trace import Drop, Event, Fetch, Hold, Release, Run, Trace
from vlmplan.memory.gathering import GatheredWeights, Sent, notify
from vlmplan.recipe import ZeroSettings


class LiveBytes(NamedTuple):
    """The fewest and the most bytes of gathered weights while a section runs."""

    least: int
    most: int


class PhaseGathers(NamedTuple):
    """Of forward or of backward: the collectives, and for each run of a section, as they follow each other, what is
    live meanwhile."""

    sent: Sent
    live: list[LiveBytes]


class GatherWalk(NamedTuple):
    """``num_weights`` are those that come and go: what a rank's share is padded by for each depends on the ranks."""

    forward: PhaseGathers
    backward: PhaseGathers
    num_weights: int


def gather_walk(trace: Trace, zero: ZeroSettings, *, num_wrappers: int, is_alone: bool = False) -> GatherWalk:
    """A micro batch on several ranks; ``is_alone``: on one, which brings weights from the host.

    Any number of ranks above one sends the same, and has the same live but for what shares are padded by.
    """
    sizes = ZeroSettings(
        stage3_prefetch_bucket_size=zero.stage3_prefetch_bucket_size,
        stage3_param_persistence_threshold=zero.stage3_param_persistence_threshold,
        stage3_max_live_parameters=zero.stage3_max_live_parameters,
        stage3_max_reuse_distance=zero.stage3_max_reuse_distance,
    )
    key = (gather_walk, sizes, num_wrappers, is_alone)
    if key not in trace.memo:
        trace.memo[key] = _walked(_Walk(_shape(trace), sizes, num_wrappers, is_alone, trace))
    return trace.memo[key]


@dataclass(frozen=True, slots=True)
class _Walk:
    """How a trace uses weights, and what decides which of them are fetched when; equal walks gather the same."""

    shape: Any
    sizes: ZeroSettings
    num_wrappers: int
    is_alone: bool
    trace: Trace = field(compare=False)


def _shape(trace: Trace) -> Any:
    """What tells the walks over weights of two traces apart: modules, weights and views by the order of first use."""
    if _shape not in trace.memo:
        trace.memo[_shape] = _Shape(trace).key
    return trace.memo[_shape]


class _Shape:
    """``key`` is equal for traces that use weights of the same sizes in the same order."""

    def __init__(self, trace: Trace) -> None:
        self._modules: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._views: dict[int, int] = {}
        self._members: list[tuple[tuple[int, int, int, bool], ...]] = []
        sections = tuple(
            (key, self._numbered(section.forward), self._numbered(section.backward))
            for key, section in trace.sections.items()
        )
        self.key = (sections, tuple(self._members), tuple(trace.schedule))

    def _numbered(self, events: list[Event]) -> tuple[tuple[Any, ...], ...]:
        return tuple(self._event(event) for event in _of_weights(events))

    def _event(self, event: Fetch | Release | Hold | Drop) -> tuple[Any, ...]:
        if isinstance(event, Fetch):
            return (self._module(event.module),)
        if isinstance(event, Release):
            return self._module(event.module), event.ends_recomputation
        view = self._views.setdefault(event.handle, len(self._views))
        if isinstance(event, Drop):
            return view, None
        return view, None, self._weights.setdefault(id(event.parameter), len(self._weights))

    def _module(self, module: Any) -> int:
        number = self._modules.setdefault(id(module), len(self._modules))
        if number == len(self._members):
            own = module.parameters_by_name.values()
            places = [self._weights.setdefault(id(weight), len(self._weights)) for weight in own]
            self._members.append(
                tuple(
                    (place, weight.numel, weight.dtype.num_bytes, weight.requires_grad)
                    for place, weight in zip(places, own, strict=True)
                )
            )
        return number


@lru_cache(maxsize=32)
def _walked(walk: _Walk) -> GatherWalk:
    trace = walk.trace
    gathered = GatheredWeights(
        trace=trace,
        zero=walk.sizes,
        num_ranks=1 if walk.is_alone else 2,
        num_wrappers=walk.num_wrappers,
        offloads=walk.is_alone,
    )
    forward = {key: _of_weights(section.forward) for key, section in trace.sections.items()}
    backward = {key: _of_weights(section.backward) for key, section in trace.sections.items()}
    live = (
        [_live_bytes(gathered, forward[run.key], run) for run in trace.schedule],
        [_live_bytes(gathered, backward[run.key], run) for run in reversed(trace.schedule)],
    )
    phases = [PhaseGathers(sent, bytes_of) for sent, bytes_of in zip(gathered.sent, live, strict=True)]
    return GatherWalk(phases[0], phases[1], gathered.num_weights)


def _live_bytes(gathered: GatheredWeights, events: Iterable[Event], run: Run) -> LiveBytes:
    least = most = gathered.live_bytes
    for event in events:
        most = max(most, notify(gathered, event, run))
        least = min(least, gathered.live_bytes)
    return LiveBytes(least, most)


def _of_weights(events: list[Event]) -> list[Fetch | Release | Hold | Drop]:
    return [event for event in events if isinstance(event, Fetch | Release | Hold | Drop)]
