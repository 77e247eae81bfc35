"""What a rehearsal saw: the answer of ``vlmplan_trainer.rehearse`` (schema ``vlmplan.rehearsed/1``). Bytes are of one
rank, as tensors ask for them; workspaces of libraries are not among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from vlmplan.engines.components import Components
from vlmplan.files.json_reader import JsonObject
from vlmplan.timing import CountedWork

SCHEMA = "vlmplan.rehearsed/1"
CACHE_EMPTIED = (0, 0)
"""The event of a cache that is emptied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A storage that was alive at a peak. ``maker`` is a module, a function of a library or an autograd node; it is
    empty for small storages and for those that were freed before they were looked at."""

    num_bytes: int
    component: str
    maker: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What storages were for, and what made them; of small ones only ``component`` and ``phase`` are known."""

    component: str
    maker: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedPhase:
    """One phase; ``step`` is 0 for load, init and save. ``components`` and ``largest`` describe its peak."""

    name: str
    step: int
    resident_bytes: int
    peak_bytes: int
    host_resident_bytes: int
    host_peak_bytes: int
    seconds: float
    flops: int
    components: Components
    largest: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedCollectives:
    """Collectives of one kind in one phase; of ranks that take part ``group_size`` and ``ranks_apart`` are as
    ``engines.collectives`` has them."""

    phase: str
    step: int
    kind: str
    count: int
    num_bytes: int
    group_size: int | None = None
    ranks_apart: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """A phase's events: from ``begin`` up to, not including, ``end``. A phase comes as often as there are micro
    batches."""

    begin: int
    name: str
    step: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """``events`` are (storage, +bytes or -bytes) of the device in order, ``CACHE_EMPTIED`` among them; ``streams`` the
    numbers of the streams on which storages were asked for, 0 for all that are not there; ``origins`` those of all
    storages."""

    rank: int
    num_ranks: int
    num_steps: int
    seconds: float
    num_operations: int
    checkpoint_bytes: int | None
    phases: tuple[RehearsedPhase, ...]
    collectives: tuple[RehearsedCollectives, ...]
    events: Sequence[tuple[int, int]] = field(repr=False)
    marks: tuple[PhaseSpan, ...]
    streams: Mapping[int, int] = field(default_factory=dict[int, int], repr=False)
    origins: Mapping[int, Origin] = field(default_factory=dict[int, Origin], repr=False)
    works: tuple[CountedWork, ...] = field(default=(), repr=False)
    """What each phase makes the GPU do."""

    @property
    def last_phases(self) -> list[RehearsedPhase]:
        """The phases of a run in order, those of its last step for all steps but the first, or, where a step behind an
        evaluation was rehearsed too and takes more, of that."""
        behind = {phase.name: phase for phase in self.phases if phase.step == self.num_steps + 1}
        found: list[RehearsedPhase] = []
        for phase in self.phases:
            if phase.step in (0, self.num_steps):
                found.append(max(phase, behind.get(phase.name, phase), key=lambda one: one.peak_bytes))
        return found

    def first(self, name: str) -> RehearsedPhase | None:
        """The phase of that name in the first step; None for those outside of steps."""
        return next((phase for phase in self.phases if (phase.name, phase.step) == (name, 1)), None)

    @property
    def flops_per_step(self) -> int:
        return sum(phase.flops for phase in self.phases if phase.step == self.num_steps)

    @property
    def step_collectives(self) -> list[RehearsedCollectives]:
        """The collectives of the last step."""
        return [collective for collective in self.collectives if collective.step == self.num_steps]

    @property
    def host_peak_bytes(self) -> int:
        return max(phase.host_peak_bytes for phase in self.phases)


def rehearsed_from_json(answer: JsonObject) -> Rehearsed:
    """The inverse of what ``vlmplan_trainer.rehearse`` writes. Raises InputError for anything else."""
    if answer.raw("schema") != SCHEMA:
        answer.refuse("schema", SCHEMA)
    events = _events(answer.object("events"))
    return Rehearsed(
        rank=answer.count("rank"),
        num_ranks=answer.count("num_ranks", least=1),
        num_steps=answer.count("num_steps", least=1),
        seconds=answer.number("seconds"),
        num_operations=answer.count("num_operations"),
        checkpoint_bytes=answer.maybe("checkpoint_bytes", answer.count),
        phases=tuple(_phase(phase) for phase in answer.objects("phases")),
        collectives=tuple(_collectives(one) for one in answer.objects("collectives")),
        events=events,
        marks=_marks(answer, len(events)),
        streams=_streams(answer),
        origins=_origins(answer.object("origins"), events),
        works=tuple(_work(one) for one in answer.objects("work")),
    )


def _phase(section: JsonObject) -> RehearsedPhase:
    components = section.object("components")
    counts = ("step", "resident_bytes", "peak_bytes", "host_resident_bytes", "host_peak_bytes", "flops")
    return RehearsedPhase(
        name=section.text("name"),
        seconds=section.number("seconds"),
        components=Components(**{name: components.count(name) for name in components.values}),
        largest=tuple(Allocation(num_bytes=one.count("num_bytes"), **_made(one)) for one in section.objects("largest")),
        **{name: section.count(name) for name in counts},
    )


def _made(section: JsonObject) -> dict[str, Any]:
    """What ``Allocation`` and ``Origin`` say of a storage."""
    shape = section.raw("shape")
    if not _are_counts(shape):
        section.refuse("shape", "a list of whole numbers")
    texts = ("component", "maker", "operation", "dtype", "phase")
    return {name: section.text(name) for name in texts} | {"shape": tuple(shape)}


def _origins(section: JsonObject, events: Sequence[tuple[int, int]]) -> dict[int, Origin]:
    kinds = [Origin(**_made(kind)) for kind in section.objects("kinds")]
    storages, places = section.raw("storages"), section.raw("places")
    if not _are_counts(storages):
        section.refuse("storages", "a list of whole numbers")
    if not _are_counts(places) or len(places) != len(storages) or not all(0 <= one < len(kinds) for one in places):
        section.refuse("places", f"{len(storages)} whole numbers below {len(kinds)}")
    pairs = cast("list[tuple[int, int]]", list(zip(storages, places, strict=True)))
    found = {storage: kinds[place] for storage, place in pairs}
    if not all(storage in found for storage, num_bytes in events if num_bytes > 0):
        section.complain("storages", "every storage of the events is there")
    return found


def _work(section: JsonObject) -> CountedWork:
    flops = section.object("attention_flops")
    return CountedWork(
        phase=section.text("phase"),
        products={(dtype, count, size): often for dtype, count, size, often in section.raw("products")},
        attention_flops={name: flops.count(name) for name in flops.values},
        **{name: section.count(name) for name in ("step", "moved_bytes", "copied_bytes", "num_kernels")},
    )


def _collectives(section: JsonObject) -> RehearsedCollectives:
    return RehearsedCollectives(
        phase=section.text("phase"),
        kind=section.text("kind"),
        **{name: section.count(name) for name in ("step", "count", "num_bytes")},
        **{name: section.count(name, least=1) for name in ("group_size", "ranks_apart") if name in section},
    )


def _events(section: JsonObject) -> list[tuple[int, int]]:
    storages, sizes = section.raw("storages"), section.raw("bytes")
    if not _are_counts(storages):
        section.refuse("storages", "a list of whole numbers")
    if not _are_counts(sizes) or len(sizes) != len(storages):
        section.refuse("bytes", f"a list of {len(storages)} whole numbers")
    return list(zip(storages, sizes, strict=True))


def _marks(answer: JsonObject, num_events: int) -> tuple[PhaseSpan, ...]:
    marks: list[PhaseSpan] = []
    for item in answer.raw("marks"):
        if [type(value) for value in item] != [int, str, int, int]:
            answer.refuse("marks", "a list of first event, phase, step and last event")
        begin, name, step, end = item
        if not 0 <= begin <= end <= num_events:
            answer.complain("marks", f"every phase lies within the {num_events} events")
        marks.append(PhaseSpan(begin=begin, name=name, step=step, end=end))
    return tuple(marks)


def _streams(answer: JsonObject) -> dict[int, int]:
    pairs = answer.raw("streams")
    if not isinstance(pairs, list) or not all(_are_counts(pair) and len(pair) == 2 for pair in cast(list[Any], pairs)):
        answer.refuse("streams", "a list of pairs of whole numbers")
    return dict(cast(Any, pairs))


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in cast(list[Any], values))
