"""What torch reserves for a rehearsal: its allocations in order through the caching allocator.

Sizes are rounded to 512 bytes, blocks split and merged, segments of 2 MiB, 20 MiB or the allocation's own size made
(or pages of expandable segments mapped) as torch does; nothing is a factor. Library workspaces, which no rehearsal
sees, are put in where the first forward begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vlmplan.memory.allocator import Block, CachingAllocator, OutOfDeviceMemory
from vlmplan.rehearsal.expandable import ExpandableAllocator, Span
from vlmplan.rehearsal.result import CACHE_EMPTIED, Rehearsed

FIRST_PRODUCTS = "forward"
"""The phase with the first matrix product, which makes the workspaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """``allocated_bytes`` and ``reserved_bytes`` follow each event; both count as torch does, in whole blocks."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: Sequence[int] = field(repr=False)
    reserved_bytes: Sequence[int] = field(repr=False)

    def peak_reserved_within(self, begin: int, end: int) -> int:
        """The most that was reserved during the events from ``begin`` up to ``end``, what there was before included."""
        return max(self.reserved_bytes[max(0, begin - 1) : end], default=0)


def replayed(
    rehearsed: Rehearsed,
    *,
    workspaces: Sequence[int],
    has_expandable_segments: bool,
    capacity_bytes: int | None = None,
) -> Replayed:
    """The allocator's bytes through a whole rehearsal. Raises OutOfDeviceMemory where ``capacity_bytes`` do not do."""
    streams = StreamAllocators(
        rehearsed.streams, has_expandable_segments=has_expandable_segments, capacity_bytes=capacity_bytes
    )
    first_forward = workspace_place(rehearsed)
    allocated: list[int] = []
    reserved: list[int] = []
    for index, event in enumerate(rehearsed.events):
        if index == first_forward:
            for place, num_bytes in enumerate(workspaces, start=1):
                streams.allocate(-place, num_bytes)
        storage, num_bytes = event
        if num_bytes > 0:
            streams.allocate(storage, num_bytes)
        elif num_bytes < 0:
            streams.free(storage)
        elif event == CACHE_EMPTIED:
            streams.empty_cache()
        allocated.append(streams.allocated_bytes)
        reserved.append(streams.reserved_bytes)
    return Replayed(
        peak_allocated_bytes=max(allocated, default=0),
        peak_reserved_bytes=streams.peak_reserved_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
    )


class StreamAllocators:
    """An allocator for each stream, which together have ``capacity_bytes``: what one stream frees no other gets.

    ``streams``: those of storages that do not come from the default one. A storage is free for its stream as soon as
    it is freed, as if others that used it (``record_stream``) had done with it.
    """

    def __init__(
        self, streams: Mapping[int, int], *, has_expandable_segments: bool, capacity_bytes: int | None = None
    ) -> None:
        self.allocated_bytes = self.reserved_bytes = self.peak_reserved_bytes = 0
        self._capacity_bytes, self._streams = capacity_bytes, streams
        self._kind = ExpandableAllocator if has_expandable_segments else CachingAllocator
        self._allocators: dict[int, ExpandableAllocator | CachingAllocator] = {}
        self._blocks: dict[int, Block | Span] = {}

    def allocate(self, storage: int, num_bytes: int) -> None:
        """Raises OutOfDeviceMemory where not even empty caches of all streams make room."""
        allocator = self._of(storage)
        try:
            block = self._allocated(allocator, num_bytes)
        except OutOfDeviceMemory:
            self.empty_cache()
            block = self._allocated(allocator, num_bytes)
        self._blocks[storage] = block
        self._count()
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def free(self, storage: int) -> None:
        allocator, block = self._of(storage), self._blocks.pop(storage)
        if isinstance(allocator, ExpandableAllocator):
            assert isinstance(block, Span)
            allocator.free(block)
        else:
            assert isinstance(block, Block)
            allocator.free(block)
        self._count()

    def empty_cache(self) -> None:
        for allocator in self._allocators.values():
            allocator.empty_cache()
        self._count()

    def _of(self, storage: int) -> ExpandableAllocator | CachingAllocator:
        stream = self._streams.get(storage, 0)
        if stream not in self._allocators:
            self._allocators[stream] = self._kind()
        return self._allocators[stream]

    def _allocated(self, allocator: ExpandableAllocator | CachingAllocator, num_bytes: int) -> Block | Span:
        if self._capacity_bytes is not None:
            others = sum(other.reserved_bytes for other in self._allocators.values() if other is not allocator)
            allocator.capacity_bytes = self._capacity_bytes - others
        return allocator.allocate(num_bytes)

    def _count(self) -> None:
        self.allocated_bytes = sum(allocator.allocated_bytes for allocator in self._allocators.values())
        self.reserved_bytes = sum(allocator.reserved_bytes for allocator in self._allocators.values())


def workspace_place(rehearsed: Rehearsed) -> int:
    """The event before which the workspaces are there."""
    return next((mark.begin for mark in rehearsed.marks if mark.name == FIRST_PRODUCTS), len(rehearsed.events))
