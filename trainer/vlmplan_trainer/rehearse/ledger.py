"""Which storages are alive on the GPU and on the host, how many bytes they take, and what allocated them.

Sizes are of blocks, as ``torch.cuda.memory_allocated`` counts them: on a GPU what was asked for, rounded up to 512
bytes (``kMinBlockSize``, ``c10/core/CachingDeviceAllocator.h``); in host memory what was asked for, as
``measure.LiveStorages`` counts it. ``events`` lets an allocator be replayed.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from vlmplan_trainer.rehearse.streams import current_number

Maker = Callable[[], str]
CACHE_EMPTIED = (0, 0)
"""The event of a cache that is emptied: no storage has the number 0."""
GPU_BLOCK_BYTES = 512
"""Storages on a GPU take a multiple of this (``kMinBlockSize`` in ``CUDACachingAllocator.cpp``)."""
NAMED_BYTES = 1 << 20
"""Storages from this size on are remembered with their maker where no other is given: looking through the stack takes
time."""
WORKSPACE = "workspace"
"""What a kernel takes for itself, in the place of an operation."""


@dataclass(slots=True)
class MemoryLedger:
    """The storages of one memory. ``events`` are (storage, +bytes or -bytes), in order; ``streams`` those on which
    storages were asked for, where that was not the default one."""

    live_bytes: int = 0
    peak_bytes: int = 0
    """Of the phase."""
    peak_since_reset_bytes: int = 0
    """Since the code that runs reset it, as ``torch.cuda.max_memory_allocated`` counts."""
    events: list[tuple[int, int]] = field(default_factory=list)
    streams: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Entry:
    """A live storage. ``maker`` and ``op`` are empty for small ones, ``phase`` of what is made between phases."""

    num_bytes: int
    is_on_device: bool
    shape: tuple[int, ...] = ()
    dtype: str = ""
    op: str = ""
    maker: str = ""
    phase: str = ""


class WatchedStorage(weakref.ref[Any]):
    """Tells when a storage goes; ``weakref.finalize`` takes several times as long."""

    __slots__ = ("key", "number")
    key: int
    number: int


@dataclass
class Ledger:
    """All live storages by number; numbers are never used twice.

    ``counts_host_as_device``: ranks run on the CPU, whose memory is the device's; as ``measure.LiveStorages`` on a real
    run, only what is made within phases is seen then.
    """

    counts_host_as_device: bool = False
    block_bytes: int = 1
    """What the device's allocator rounds up to."""
    named_bytes: int = NAMED_BYTES
    is_in_phase: bool = False

    device: MemoryLedger = field(default_factory=MemoryLedger)
    host: MemoryLedger = field(default_factory=MemoryLedger)
    entries: dict[int, Entry] = field(default_factory=dict)
    made: dict[int, Entry] = field(default_factory=dict)
    """Every storage that the device has had, the released ones too."""
    phase: str = ""
    watched_bytes: int | None = None
    """When the device first holds so many, ``snapshot`` is taken."""
    snapshot: Callable[[], None] | None = None
    _numbers: dict[int, int] = field(default_factory=dict)
    _held: dict[int, "WatchedStorage"] = field(default_factory=dict)
    _emptied: dict[int, tuple["weakref.ref[Any]", Entry]] = field(default_factory=dict)
    """Storages that live but have no bytes now, and what they were."""
    _last: int = 0

    def number_of(self, storage: Any) -> int | None:
        """The number of a storage that was noted; None for any other."""
        return self._numbers.get(storage._cdata)

    def note(self, tensor: Any, op: Any, maker: Maker) -> None:
        """A tensor that an operation returned: its storage is new unless it is a view or was changed in place."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._numbers:
            return
        kind = tensor.device.type
        if kind == "meta" or (self.counts_host_as_device and not self.is_in_phase):
            return
        is_on_device = kind != "cpu" or self.counts_host_as_device
        entry = Entry(self._size(storage, is_on_device), is_on_device)
        if entry.num_bytes >= self.named_bytes:
            entry.shape, entry.dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            entry.op, entry.maker = str(op), maker()
        self._begin(storage, entry)

    def _size(self, storage: Any, is_on_device: bool) -> int:
        return self._block(storage.nbytes()) if is_on_device else storage.nbytes()

    def _begin(self, storage: Any, entry: Entry) -> None:
        """The storage is alive from now on."""
        self._last += 1
        key, number = storage._cdata, self._last
        self._numbers[key], self.entries[number] = number, entry
        entry.phase = self.phase if self.is_in_phase else ""
        self._add(entry, number, entry.num_bytes)
        held = self._held[number] = WatchedStorage(storage, self._forget)
        held.key, held.number = key, number

    def resized(self, storage: Any, maker: Maker) -> None:
        """A storage whose tensors stay may have another size: it goes, and comes anew unless it is empty."""
        number = self._numbers.get(storage._cdata)
        if number is not None:
            before = self.entries[number]
            if before.num_bytes == self._size(storage, before.is_on_device):
                return
            self._forget(self._held[number])
        else:
            known = self._emptied.pop(storage._cdata, None)
            if known is None or known[0]() is not storage:
                return
            before = known[1]
        if not storage.nbytes():
            self._emptied[storage._cdata] = weakref.ref(storage), before
            return
        num_bytes = self._size(storage, before.is_on_device)
        name = maker() if num_bytes >= self.named_bytes else ""
        self._begin(storage, replace(before, num_bytes=num_bytes, op="resize_", maker=name))

    def pass_through(self, sizes: Sequence[int]) -> None:
        """Memory of the device that a kernel takes for itself while it runs, once its result is there."""
        with self.passing(sizes):
            pass

    @contextmanager
    def passing(self, sizes: Sequence[int]) -> Iterator[None]:
        """Memory of the device that is taken before what is made within, and goes after it."""
        numbers = []
        for num_bytes in map(self._block, sizes):
            self._last += 1
            numbers.append(self._last)
            entry = self.entries[self._last] = Entry(num_bytes, True, op=WORKSPACE, phase=self.phase)
            self._add(entry, self._last, num_bytes)
        yield
        for number in numbers:
            entry = self.entries.pop(number)
            self._add(entry, number, -entry.num_bytes)

    def restart_peaks(self) -> None:
        """Look for the highest moments from here on."""
        for place in (self.device, self.host):
            place.peak_bytes = place.live_bytes

    def _block(self, num_bytes: int) -> int:
        return -(-num_bytes // self.block_bytes) * self.block_bytes

    def _add(self, entry: Entry, number: int, num_bytes: int) -> None:
        place = self.device if entry.is_on_device else self.host
        place.live_bytes += num_bytes
        place.events.append((number, num_bytes))
        if num_bytes > 0 and entry.is_on_device:
            self.made[number] = entry
        if num_bytes > 0 and (stream := current_number()):
            place.streams[number] = stream
        if place.live_bytes > place.peak_since_reset_bytes:
            place.peak_since_reset_bytes = place.live_bytes
        if place.live_bytes > place.peak_bytes:
            place.peak_bytes = place.live_bytes
            if self.watched_bytes is not None and self.device.live_bytes >= self.watched_bytes and self.snapshot:
                self.watched_bytes = None
                self.snapshot()

    def _forget(self, held: "WatchedStorage") -> None:
        del self._held[held.number], self._numbers[held.key]
        entry = self.entries.pop(held.number)
        self._add(entry, held.number, -entry.num_bytes)
