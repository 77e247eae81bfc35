"""How many collectives ZeRO-3 needs to make weights whole in a micro batch, and what they carry."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from vlmplan.architecture.trace import Event, Fetch, Release, Trace
from vlmplan.memory.gathering import GatheredWeights, Sent
from vlmplan.recipe import ZeroSettings


def weight_gathers(trace: Trace, zero: ZeroSettings, *, num_wrappers: int) -> tuple[Sent, Sent]:
    """The collectives that make weights whole in one micro batch, in forward and in backward.

    They are the same for any number of ranks above one, and for traces that use weights of the same sizes in the same
    order, whatever the batch or the kind of 16-bit numbers.
    """
    sizes = ZeroSettings(
        stage3_prefetch_bucket_size=zero.stage3_prefetch_bucket_size,
        stage3_param_persistence_threshold=zero.stage3_param_persistence_threshold,
        stage3_max_live_parameters=zero.stage3_max_live_parameters,
        stage3_max_reuse_distance=zero.stage3_max_reuse_distance,
    )
    key = (weight_gathers, sizes, num_wrappers)
    if key not in trace.memo:
        trace.memo[key] = _sent(_Walk(_shape(trace), sizes, num_wrappers, trace))
    return trace.memo[key]


@dataclass(frozen=True, slots=True)
class _Walk:
    """How a trace uses weights, and what decides which of them are fetched when; equal walks send the same."""

    shape: Any
    sizes: ZeroSettings
    num_wrappers: int
    trace: Trace = field(compare=False)


def _shape(trace: Trace) -> Any:
    """What tells the walks over weights of two traces apart: modules and weights by the order of their first use."""
    modules: dict[int, int] = {}
    weights: dict[int, int] = {}
    members: list[tuple[tuple[int, int, int, bool], ...]] = []

    def number(module: Any) -> int:
        if id(module) not in modules:
            modules[id(module)] = len(modules)
            own = module.parameters_by_name.values()
            places = [weights.setdefault(id(weight), len(weights)) for weight in own]
            members.append(
                tuple(
                    (place, weight.numel, weight.dtype.num_bytes, weight.requires_grad)
                    for place, weight in zip(places, own, strict=True)
                )
            )
        return modules[id(module)]

    def numbered(events: list[Event]) -> tuple[tuple[int, bool | None], ...]:
        return tuple(
            (number(event.module), None if isinstance(event, Fetch) else event.ends_recomputation)
            for event in _comings_and_goings(events)
        )

    sections = tuple(
        (key, numbered(section.forward), numbered(section.backward)) for key, section in trace.sections.items()
    )
    return (sections, tuple(members), tuple(trace.schedule))


@lru_cache(maxsize=32)
def _sent(walk: _Walk) -> tuple[Sent, Sent]:
    trace = walk.trace
    gathered = GatheredWeights(trace=trace, zero=walk.sizes, num_ranks=2, num_wrappers=walk.num_wrappers)
    events: dict[str, tuple[list[Fetch | Release], list[Fetch | Release]]] = {
        key: (_comings_and_goings(section.forward), _comings_and_goings(section.backward))
        for key, section in trace.sections.items()
    }
    for runs, phase in ((trace.schedule, 0), (trace.schedule[::-1], 1)):
        for run in runs:
            for event in events[run.key][phase]:
                if isinstance(event, Fetch):
                    gathered.fetch()
                else:
                    gathered.release(event, run)
    return gathered.sent


def _comings_and_goings(events: list[Event]) -> list[Fetch | Release]:
    return [event for event in events if isinstance(event, Fetch | Release)]
