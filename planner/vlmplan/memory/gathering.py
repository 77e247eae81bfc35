"""ZeRO stage 3: which weights are whole on a GPU while the model runs.

A simulation of ``PartitionedParameterCoordinator`` (``deepspeed/runtime/zero/partitioned_param_coordinator.py``,
0.19.8) in its steady state, from the third forward on, when the order of modules is known and weights are prefetched.
Every use of a module is a step: it fetches what is missing, prefetches what comes next, and releases what is not used
again soon. Sizes are in elements as DeepSpeed counts them; ``gathered_bytes`` turns them into bytes.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmplan.architecture.trace import Drop, Event, Fetch, Hold, Release, Run, Trace
from vlmplan.memory.blocks import UNWATCHED, Stream, Watcher
from vlmplan.recipe import ZeroSettings

ParameterKey = tuple[int, int | None]
ModuleKey = tuple[int, int | None]


WRAPPERS, ADAPTER_WRAPPERS = 3, 2
"""Modules around the embedding that have no weights: the trainer's ``LossModule``, the model with its head and the one
without; peft's two around the model. Each prefetches before it runs, forward and backward."""


@dataclass(slots=True)
class Sent:
    """Collectives that make weights whole, of one phase: how many, how many of them carry trained and frozen weights,
    and how many weights of which size (in bytes, not padded) they carry, trained and frozen."""

    num_gathers: int = 0
    num_with_trained: int = 0
    num_with_frozen: int = 0
    trained: Counter[int] = field(default_factory=Counter[int])
    frozen: Counter[int] = field(default_factory=Counter[int])

    def add(self, trained: Sequence[int], frozen: Sequence[int]) -> None:
        """One more, of weights of these sizes."""
        self.num_gathers += 1
        self.num_with_trained += bool(trained)
        self.num_with_frozen += bool(frozen)
        self.trained.update(trained)
        self.frozen.update(frozen)


@dataclass(slots=True, eq=False)
class _Storage:
    """A whole weight. Views that autograd has saved keep it when DeepSpeed takes it from the weight."""

    num_views: int = 0
    is_released: bool = False


@dataclass(slots=True, eq=False)
class _Gather:
    """One collective that is under way or whose flat buffer still exists, and what it makes whole."""

    flat_bytes: int
    num_waiting: int
    is_done: bool = False
    storages: dict[ParameterKey, _Storage] = field(default_factory=dict[ParameterKey, _Storage])


class GatheredWeights:
    """The gathered weights of one rank over one micro batch.

    ``live_bytes`` is what they take now, flat buffers of collectives included; ``fetch`` returns the most that was
    live during it; ``sent`` are the collectives so far, of forward and of backward. Weights up to the persistence
    threshold are always whole and not counted here.
    """

    def __init__(
        self,
        *,
        trace: Trace,
        zero: ZeroSettings,
        num_ranks: int,
        num_wrappers: int = WRAPPERS,
        offloads: bool = False,
        watcher: Watcher = UNWATCHED,
    ) -> None:
        """``num_wrappers``: modules without weights of their own around the first that has some. ``offloads``: this
        rank's shards are on the host, and come to the GPU before they are sent."""
        self._zero, self._num_ranks, self._num_wrappers, self._offloads = zero, num_ranks, num_wrappers, offloads
        self._watcher = watcher
        self._peak = 0
        self.sent = (Sent(), Sent())
        self._numel: dict[ParameterKey, int] = {}
        self._bytes: dict[ParameterKey, int] = {}
        self._trained: set[ParameterKey] = set()
        self._members: dict[ModuleKey, list[ParameterKey]] = {}
        forward = [self._module_key(event.module, run) for run, event in _forward_fetches(trace)]
        backward = [self._module_key(event.module, run) for run, event in _backward_fetches(trace)]
        self._steps: list[ModuleKey] = forward + backward
        self._outermost_steps = (0, len(forward))
        self._traversed = self._cumulative_elements()
        self._uses = self._uses_by_parameter()
        self._queue = deque((key, step) for step, module in enumerate(self._steps) for key in self._members[module])
        self._fetched_for: dict[ParameterKey, int] = {}
        self._available: dict[ParameterKey, _Storage] = {}
        self._active: dict[ModuleKey, None] = {}  # fetched and not released
        self._users: dict[ParameterKey, set[ModuleKey]] = {}
        self._views: dict[tuple[int, int | None], tuple[ParameterKey, _Storage]] = {}
        self._in_flight: dict[ParameterKey, _Gather] = {}
        self._num_available = 0
        self._step = 0
        self.live_bytes = 0

    # -- tables --------------------------------------------------------------------------------------------------

    def _module_key(self, module: Any, run: Run) -> ModuleKey:
        key = (id(module), run.layer)
        if key not in self._members:
            members: list[ParameterKey] = []
            for parameter in module.parameters_by_name.values():
                parameter_key = (id(parameter), run.layer)
                self._numel[parameter_key] = parameter.numel
                self._bytes[parameter_key] = parameter.numel * parameter.dtype.num_bytes
                if parameter.requires_grad:
                    self._trained.add(parameter_key)
                members.append(parameter_key)
            self._members[key] = members
        return key

    def _is_persistent(self, key: ParameterKey) -> bool:
        return self._numel[key] <= self._zero.stage3_param_persistence_threshold

    def _cumulative_elements(self) -> list[int]:
        total = 0
        result = [0]
        for module in self._steps:
            total += sum(self._numel[key] for key in self._members[module])
            result.append(total)
        return result

    def _uses_by_parameter(self) -> dict[ParameterKey, deque[int]]:
        uses: dict[ParameterKey, deque[int]] = {}
        for step, module in enumerate(self._steps):
            for key in self._members[module]:
                uses.setdefault(key, deque()).append(step)
        return uses

    # -- events --------------------------------------------------------------------------------------------------

    def fetch(self, module: Any, run: Run) -> int:
        """The module is about to run: gather what it needs, then prefetch (``fetch_sub_module``)."""
        module_key = (id(module), run.layer)
        members = self._members[module_key]
        self._active[module_key] = None
        self._peak = self.live_bytes
        if self._step in self._outermost_steps:
            for _ in range(self._num_wrappers):
                self._prefetch()
        for key in members:
            self._users.setdefault(key, set()).add(module_key)
        if missing := [key for key in members if not self._is_persistent(key) and not self._is_here(key)]:
            self._gather(missing)
        for key in members:
            gather = self._in_flight.pop(key, None)
            if gather is not None:
                self._wait(gather, key)
        self._drop_from_queue(members)
        self._prefetch()
        self._step += 1
        return max(self._peak, self.live_bytes)

    def release(self, event: Release, run: Run) -> None:
        """The module is done: partition what is not used again within the reuse distance (``release_sub_module``)."""
        module_key = (id(event.module), run.layer)
        self._active.pop(module_key, None)
        for key in self._members[module_key]:
            users = self._users[key]
            users.discard(module_key)
            if key in self._available and not users and (event.ends_recomputation or not self._is_kept(key)):
                self._take(key)

    def end_backward(self) -> None:
        """Release the modules whose input needed no gradient, so that none told them that their backward is done
        (``release_backward_leftovers``, after the last reduction of gradients)."""
        for module in self._active:
            for key in self._members[module]:
                if key in self._available:
                    self._take(key)
        self._active.clear()

    def hold(self, event: Hold, run: Run) -> None:
        """Autograd saves a view. ``F.linear`` does; ``stage3_max_live_parameters`` knows nothing of it."""
        key = (id(event.parameter), run.layer)
        storage = self._available.get(key)
        if storage is not None:
            storage.num_views += 1
            self._views[(event.handle, run.layer)] = key, storage

    def drop(self, event: Drop, run: Run) -> None:
        """The backward that needed the view has run."""
        key, storage = self._views.pop((event.handle, run.layer), (None, None))
        if key is None or storage is None:
            return
        storage.num_views -= 1
        if storage.is_released and not storage.num_views:
            self.live_bytes -= self._bytes[key]
            self._watcher.free(storage)

    def _take(self, key: ParameterKey) -> None:
        """The whole weight goes, but for views of it."""
        storage = self._available.pop(key)
        storage.is_released = True
        self._num_available -= self._numel[key]
        if not storage.num_views:
            self.live_bytes -= self._bytes[key]
            self._watcher.free(storage)

    def _is_here(self, key: ParameterKey) -> bool:
        return key in self._available or key in self._in_flight

    def _gather(self, keys: list[ParameterKey]) -> None:
        """Start one collective. A single weight lands in its own buffer; several share a flat one.

        A rank that is alone brings each weight from the host to where it stays (``NoGatherCoalescedHandle``).
        """
        is_alone = self._num_ranks == 1
        flat = 0 if is_alone else sum(self._aligned_bytes(key) for key in keys)
        gather = _Gather(flat, len(keys), storages={key: _Storage() for key in keys})
        for key in keys:
            self._in_flight[key] = gather
            self._num_available += self._numel[key]
        if is_alone or len(keys) == 1:
            for key in keys:
                self._watcher.make(gather.storages[key], flat or self._bytes[key], Stream.GATHER)
        else:
            self._watcher.make(gather, flat, Stream.GATHER)
        if self._offloads and not is_alone:
            self._watcher.pass_through([self._aligned_bytes(key) // self._num_ranks for key in keys], Stream.GATHER)
        self.live_bytes += sum(self._bytes[key] for key in keys) if is_alone else flat
        self._count(keys)
        shards = flat // self._num_ranks if self._offloads else 0
        self._peak = max(self._peak, self.live_bytes + shards)

    def _count(self, keys: list[ParameterKey]) -> None:
        sent = self.sent[self._step >= self._outermost_steps[1]]
        sent.add(
            [self._bytes[key] for key in keys if key in self._trained],
            [self._bytes[key] for key in keys if key not in self._trained],
        )

    def _wait(self, gather: _Gather, key: ParameterKey) -> None:
        """The collective is needed: weights are copied out of a shared buffer, which goes with its last user."""
        if not gather.is_done:
            gather.is_done = True
            self._available.update(gather.storages)
            if self._num_ranks == 1:
                pass
            elif len(gather.storages) == 1:
                self.live_bytes += self._bytes[key] - gather.flat_bytes
                gather.flat_bytes = 0
            else:
                for other, storage in gather.storages.items():
                    self.live_bytes += self._bytes[other]
                    self._watcher.make(storage, self._bytes[other], Stream.GATHER)
        self._peak = max(self._peak, self.live_bytes)
        gather.num_waiting -= 1
        if gather.num_waiting == 0:
            self.live_bytes -= gather.flat_bytes
            self._watcher.free(gather)

    def _aligned_bytes(self, key: ParameterKey) -> int:
        return -(-self._bytes[key] // self._num_ranks) * self._num_ranks

    def _drop_from_queue(self, members: list[ParameterKey]) -> None:
        expected = sum(1 for key in members if self._fetched_for.get(key, -1) < self._step)
        dropped: set[ParameterKey] = set()
        while self._queue and len(dropped) < expected:
            key, step = self._queue.popleft()
            self._fetched_for[key] = step
            dropped.add(key)

    def _prefetch(self) -> None:
        room = min(self._zero.stage3_max_live_parameters - self._num_available, self._zero.stage3_prefetch_bucket_size)
        chosen: dict[ParameterKey, None] = {}
        num_elements = 0
        while self._queue and num_elements < room:
            key, step = self._queue.popleft()
            self._fetched_for[key] = max(self._fetched_for.get(key, -1), step)
            if not self._is_persistent(key) and not self._is_here(key) and key not in chosen:
                chosen[key] = None
                num_elements += self._numel[key]
        if chosen:
            self._gather(list(chosen))

    def _is_kept(self, key: ParameterKey) -> bool:
        """Whether the weight stays: prefetch counted on it, or it is used again within the reuse distance."""
        if self._fetched_for.get(key, -1) > self._step:
            return True
        uses = self._uses[key]
        while uses and uses[0] < self._step:
            uses.popleft()
        if not uses:
            return False
        return self._traversed[uses[0]] - self._traversed[self._step] < self._zero.stage3_max_reuse_distance


def notify(gathered: GatheredWeights, event: Any, run: Run) -> int:
    """Tell ``gathered`` of an event. Returns the most bytes that were live during it."""
    if isinstance(event, Fetch):
        return gathered.fetch(event.module, run)
    if isinstance(event, Release):
        gathered.release(event, run)
    elif isinstance(event, Hold):
        gathered.hold(event, run)
    elif isinstance(event, Drop):
        gathered.drop(event, run)
    return gathered.live_bytes


def _forward_fetches(trace: Trace) -> Iterator[tuple[Run, Fetch]]:
    for run, section in trace.forward():
        yield from ((run, event) for event in section.forward if isinstance(event, Fetch))


def _backward_fetches(trace: Trace) -> Iterator[tuple[Run, Fetch]]:
    for run, section in trace.backward():
        yield from ((run, event) for event in section.backward if isinstance(event, Fetch))


def weight_gathers(trace: Trace, zero: ZeroSettings, *, num_wrappers: int) -> tuple[Sent, Sent]:
    """The collectives that make weights whole in one micro batch, in forward and in backward.

    They are the same for any number of ranks above one.
    """
    gathered = GatheredWeights(trace=trace, zero=zero, num_ranks=2, num_wrappers=num_wrappers)
    events: dict[str, tuple[list[Fetch | Release], list[Fetch | Release]]] = {
        key: (_comings_and_goings(section.forward), _comings_and_goings(section.backward))
        for key, section in trace.sections.items()
    }
    for runs, phase in ((trace.schedule, 0), (trace.schedule[::-1], 1)):
        for run in runs:
            for event in events[run.key][phase]:
                if isinstance(event, Fetch):
                    gathered.fetch(event.module, run)
                else:
                    gathered.release(event, run)
    return gathered.sent


def _comings_and_goings(events: list[Event]) -> list[Fetch | Release]:
    return [event for event in events if isinstance(event, Fetch | Release)]
