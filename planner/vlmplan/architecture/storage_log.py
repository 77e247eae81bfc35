"""A tape that follows every storage, for replaying torch's caching allocator.

How much the allocator reserves depends on the sizes and the order of all storages. A ``LoggingTape`` records
``Allocation`` and ``Deallocation`` events in place of spans; ``expanded`` turns its trace, in which one layer stands
for all equal ones, into the operations of the whole model.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from vlmplan.architecture.backward_visit import ParameterUse
from vlmplan.architecture.storage import Storage
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.architecture.trace import (
    FIRST,
    Allocation,
    Cached,
    Deallocation,
    Event,
    GradientTaken,
    KeptCast,
    LastAdapter,
    Run,
    Section,
    StorageEvent,
    Trace,
    WeightUse,
    with_last_adapter,
)
from vlmplan.units import DType


class LoggedStorage(Storage):
    """A storage that tells its tape when it is made and freed. ``handle`` is 0 where it takes no bytes."""

    __slots__ = ("handle", "is_taken")

    def __del__(self) -> None:
        super().__del__()
        if self.handle and not self.is_taken:
            assert isinstance(self.tape, LoggingTape)
            self.tape.log_deallocation(self.handle)


class LoggingTape(Tape):
    """Logs storages. ``runs_all_layers``: nothing is left to ``expanded``, which tests compare with."""

    storage_class = LoggedStorage
    runs_every_call = True
    reuses_layers = False
    tells_storages_apart = True
    runs_all_layers = False
    _num_storages = 0

    def tensor(self, shape: tuple[int, ...], dtype: DType, node: GraphNode | None = None) -> Tensor:
        tensor = super().tensor(shape, dtype, node)
        storage = tensor.storage
        assert isinstance(storage, LoggedStorage)
        storage.is_taken = False
        storage.handle = self.log_allocation(storage.num_bytes)
        return tensor

    def counted(self, num_bytes: int) -> Storage:
        storage = super().counted(num_bytes)
        assert isinstance(storage, LoggedStorage)
        storage.is_taken, storage.handle = False, 0
        return storage

    def log_allocation(self, num_bytes: int) -> int:
        """Note a new storage, and return its handle."""
        if not num_bytes:
            return 0
        self._num_storages += 1
        self._events.append(Allocation(self._num_storages, num_bytes))
        return self._num_storages

    def log_deallocation(self, handle: int) -> None:
        self._events.append(Deallocation(handle))

    def note_cached(self, x: Tensor, *, grows: bool) -> None:
        storage = x.storage
        assert isinstance(storage, LoggedStorage)
        self._events.append(Cached(storage.handle, grows))

    def replays(self, key: str, index: int) -> bool:
        return not self.runs_all_layers and super().replays(key, index)

    @contextmanager
    def section(self, key: str, index: int | None = None) -> Generator[None]:
        name = f"{key}[{index}]" if self.runs_all_layers and index is not None else key
        with super().section(name, index):
            yield

    def _flush(self) -> None:
        """There are no spans."""
        self._events.extend(self._drops)
        self._drops.clear()

    def _free_of_reused_layers(self, trace: Trace) -> None:
        """Whoever replays the operations frees what is left (``memory/reservation.py``)."""

    def _hand_over(self, use: ParameterUse, buffers: dict[ParameterUse, Tensor]) -> None:
        parameter, storage = use[0], buffers[use].storage
        assert isinstance(storage, LoggedStorage)
        storage.is_taken = True
        handle = storage.handle
        del storage, buffers[use]
        num_bytes = parameter.numel * parameter.dtype.num_bytes
        self._events.append(GradientTaken(parameter, num_bytes, handle, self.gradient_part))


def with_handles_behind(trace: Trace, other: Trace) -> Trace:
    """``trace`` with names of storages that follow those of ``other``, for both to be parts of one; as it is where
    storages are not followed."""
    first = max((event.handle for event in _storage_events(other)), default=0)
    if not first:
        return trace

    def moved(events: Sequence[Event]) -> list[Event]:
        return [
            event._replace(handle=event.handle + first) if isinstance(event, StorageEvent) else event
            for event in events
        ]

    sections = {
        key: replace(section, forward=moved(section.forward), backward=moved(section.backward), memo={})
        for key, section in trace.sections.items()
    }
    return replace(trace, sections=sections, after=moved(trace.after), _merged=None, _works=None, memo={})


def _storage_events(trace: Trace) -> Iterator[StorageEvent]:
    sections = trace.sections.values()
    lists = [trace.after, *(events for section in sections for events in (section.forward, section.backward))]
    return (event for events in lists for event in events if isinstance(event, StorageEvent))


StorageChange = tuple[int, int]
"""(handle, bytes): a storage of the whole model is made, or freed where the bytes are 0."""


class EngineEvent(NamedTuple):
    """A gradient taken (its storage is ``handle``), what is kept while text is generated (the same), the comings and
    goings of weights, a cast that autocast keeps, or the beginning of a section's last adapter."""

    event: GradientTaken | Cached | WeightUse | KeptCast | LastAdapter
    run: Run
    handle: int = 0


Operation = StorageChange | EngineEvent


class Operations(NamedTuple):
    """One micro batch of the whole model, in order; ``forward_ends`` and ``backward_ends`` are the places where each
    run of the ``schedule`` ends there, in the order of the phase.

    """

    forward: list[Operation]
    backward: list[Operation]
    after: list[Operation]
    schedule: Sequence[Run]
    forward_ends: Sequence[int]
    backward_ends: Sequence[int]

    @property
    def batch(self) -> list[StorageChange]:
        """Those of the first run of the schedule, which makes the batch."""
        return [one for one in self.forward[: self.forward_ends[0]] if not isinstance(one, EngineEvent)]


def expanded(trace: Trace) -> Operations:
    """The operations of every layer, from a trace in which equal layers are recorded once."""
    expansion = _Expansion(trace)
    last = len(trace.schedule) - 1
    forward: list[Operation] = []
    backward: list[Operation] = []
    after: list[Operation] = []
    forward_ends: list[int] = []
    backward_ends: list[int] = []
    phases = {key: (_phase(section.forward), _phase(section.backward)) for key, section in trace.sections.items()}
    for position, run in enumerate(trace.schedule):
        expansion.expand(phases[run.key][0], run, position, forward)
        forward_ends.append(len(forward))
    for offset, run in enumerate(reversed(trace.schedule)):
        expansion.expand(phases[run.key][1], run, last - offset, backward)
        backward_ends.append(len(backward))
    expansion.expand(_phase(trace.after), Run("", None), last + 1, after)
    return Operations(forward, backward, after, trace.schedule, forward_ends, backward_ends)


@dataclass(slots=True)
class _Stretch:
    """Events of one phase of a section up to the next ``event`` that is not about its own storages, those that are made
    and freed in this phase: the same in every layer, whatever is alive around it.

    ``changes`` name them by their number among the allocations of the phase.
    """

    changes: list[StorageChange] = field(default_factory=list[StorageChange])
    event: Event | None = None
    number: int = 0
    """Of ``event``, if that is an allocation."""


class _Phase(NamedTuple):
    """The forward or the backward of a section."""

    stretches: list[_Stretch]
    num_allocations: int


def _phase(events: Sequence[Event]) -> _Phase:
    freed = {event.handle for event in events if isinstance(event, Deallocation)}
    own: dict[int, tuple[int, int]] = {}
    stretches = [_Stretch()]
    num_allocations = 0
    for event in with_last_adapter(events):
        now = stretches[-1]
        is_made = isinstance(event, Allocation)
        if is_made:
            num_allocations += 1
            if event.handle in freed:
                own[event.handle] = num_allocations, event.num_bytes
        if isinstance(event, Allocation | Deallocation) and event.handle in own:
            number, num_bytes = own[event.handle]
            now.changes.append((number, num_bytes if is_made else 0))
        elif isinstance(event, StorageEvent | KeptCast | LastAdapter | WeightUse):
            now.event, now.number = event, num_allocations
            stretches.append(_Stretch())
    return _Phase(stretches, num_allocations)


class _Expansion:
    """Handles of the recorded storages → handles of the whole model, for each position of the schedule.

    A layer frees storages of its neighbours: the hidden state of the layer before it, and in backward the gradient
    from the layer behind it. The recorded layer names those of its own neighbours; for its repetitions they are the
    storages of the same size that the neighbour leaves behind.
    """

    def __init__(self, trace: Trace) -> None:
        self._alive: list[dict[int, int]] = [{} for _ in range(len(trace.schedule) + 1)]
        self._keys = [run.key for run in trace.schedule]
        self._places: dict[str, list[int]] = {}
        for place, key in enumerate(self._keys):
            self._places.setdefault(key, []).append(place)
        self._is_layer = [*(run.layer is not None for run in trace.schedule), False]
        self._birth: dict[int, str] = {}
        self._size: dict[int, int] = {}
        self._is_late: dict[int, bool] = {}
        self._left_behind = {key: self._leftovers(key, section) for key, section in trace.sections.items()}
        self._num_allocations = 0

    def _leftovers(self, key: str, section: Section) -> list[int]:
        """Storages that a section makes and others free, in order; notes where each storage is born."""
        left: dict[int, None] = {}
        for is_late, events in enumerate((section.forward, section.backward)):
            for event in events:
                if isinstance(event, Allocation):
                    left[event.handle] = None
                    self._birth[event.handle], self._size[event.handle] = key, event.num_bytes
                    self._is_late[event.handle] = bool(is_late)
                elif isinstance(event, Deallocation | GradientTaken | Cached):
                    left.pop(event.handle, None)
        return list(left)

    def expand(self, phase: _Phase, run: Run, position: int, into: list[Operation]) -> None:
        alive, before = self._alive[position], self._num_allocations
        for stretch in phase.stretches:
            into += [(before + number, num_bytes) for number, num_bytes in stretch.changes]
            event = stretch.event
            if isinstance(event, Allocation):
                handle = alive[event.handle] = before + stretch.number
                into.append((handle, event.num_bytes))
            elif isinstance(event, Deallocation):
                handle = alive.pop(event.handle, 0) or self._of_neighbour(event.handle, position)
                if handle:
                    into.append((handle, 0))
            elif isinstance(event, GradientTaken):
                handle = alive.pop(event.handle, 0) or self._of_neighbour(event.handle, position)
                into.append(EngineEvent(event, run, handle))
            elif isinstance(event, Cached):
                made = self._alive[self._last_alive(event.handle, position)]
                into.append(EngineEvent(event, run, made[event.handle]))
            elif isinstance(event, WeightUse | KeptCast | LastAdapter):
                into.append(EngineEvent(event, run))
        self._num_allocations += phase.num_allocations

    def _of_neighbour(self, recorded: int, position: int) -> int:
        """The storage that ``recorded`` became here; 0 if another layer has freed it already."""
        birth = self._last_alive(recorded, position)
        if self._runs_as_recorded(birth) and self._runs_as_recorded(position):
            return self._alive[birth].pop(recorded, 0)
        is_late = self._is_late[recorded]
        step = 1 if is_late else -1
        size = self._size[recorded]
        near = position + step
        while 0 <= near < len(self._keys):
            alive = self._alive[near]
            if recorded in alive:
                return alive.pop(recorded)
            is_beside = self._is_layer[birth] and not self._is_layer[near]  # what comes between layers is none of them
            for handle in () if is_beside else self._left_behind[self._keys[near]]:
                if handle in alive and self._size[handle] == size and self._is_late[handle] is is_late:
                    return alive.pop(handle)
            near += step
        # Far away: the head's gradient of a weight that it shares with the embedding.
        return self._alive[birth].pop(recorded, 0)

    def _runs_as_recorded(self, position: int) -> bool:
        """Whether the section there stands for itself alone: its storages are those that were recorded. The first layer
        of a stack stands for its later ones, too."""
        if not self._is_layer[position]:
            return True
        key = self._keys[position]
        later = key.removesuffix(FIRST) if key.endswith(FIRST) else key + FIRST
        return len(self._places[key]) == 1 and later not in self._places

    def _last_alive(self, recorded: int, position: int) -> int:
        """The place of the section that made ``recorded``: of one that runs more often, the last up to ``position``
        that has left it."""
        places = self._places[self._birth[recorded]]
        alive = [place for place in places if place <= position and recorded in self._alive[place]]
        return alive[-1] if alive else places[0]
