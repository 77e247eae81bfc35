"""What torch reserves for a rehearsal: its allocations in order through the caching allocator.

Sizes are rounded to 512 bytes, blocks split and merged, segments of 2 MiB, 20 MiB or the allocation's own size made
(or pages of expandable segments mapped) as torch does; nothing is a factor. Library workspaces, which no rehearsal
sees, are put in where the first forward begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vlmplan.memory.allocator import Block, CachingAllocator
from vlmplan.memory.expandable import ExpandableAllocator, Span
from vlmplan.phase_names import EVALUATION, FORWARD, GENERATE, GENERATION, REFERENCE
from vlmplan.rehearsal.result import CACHE_EMPTIED, Rehearsed

WITH_PRODUCTS = (FORWARD, EVALUATION, GENERATE, GENERATION, REFERENCE)
"""The phases that may have the first matrix product, which makes the workspaces."""


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
    kind = ExpandableAllocator if has_expandable_segments else CachingAllocator
    allocator: Any = kind(capacity_bytes=capacity_bytes)
    first_forward = workspace_place(rehearsed)
    streams = rehearsed.streams
    blocks: dict[int, Block | Span] = {}
    allocated: list[int] = []
    reserved: list[int] = []
    for index, event in enumerate(rehearsed.events):
        if index == first_forward:
            for num_bytes in workspaces:
                allocator.allocate(num_bytes)
        storage, num_bytes = event
        if num_bytes > 0:
            blocks[storage] = allocator.allocate(num_bytes, streams.get(storage, 0))
        elif num_bytes < 0:
            allocator.free(blocks.pop(storage))
        elif event == CACHE_EMPTIED:
            allocator.empty_cache()
        allocated.append(allocator.allocated_bytes)
        reserved.append(allocator.reserved_bytes)
    return Replayed(
        peak_allocated_bytes=max(allocated, default=0),
        peak_reserved_bytes=allocator.peak_reserved_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
    )


def workspace_place(rehearsed: Rehearsed) -> int:
    """The event before which the workspaces are there."""
    return min([mark.begin for mark in rehearsed.marks if mark.name in WITH_PRODUCTS], default=len(rehearsed.events))
