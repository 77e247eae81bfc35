"""torch's caching allocator with ``expandable_segments:True``: a stretch of addresses for each size class of a stream,
to which physical pages are mapped as it grows.

Source: ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13): ``get_free_block``, ``find_expandable_block``,
``try_allocate_expandable_block``, ``map_block``, ``unmap_block``, ``should_split``.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import chain
from typing import Final

from vlmplan.memory.allocator import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    OutOfDeviceMemory,
)

_STRETCH_BYTES: Final = 2**30 * LARGE_SEGMENT_BYTES
"""Addresses of a size class: more than any device has, and a multiple of both kinds of pages."""


@dataclass(slots=True, eq=False)
class Span:
    """Neighbouring addresses of one kind: handed out, free, or without memory behind them."""

    stretch: "Stretch"
    address: int
    num_bytes: int
    is_mapped: bool
    is_free: bool = True
    previous: "Span | None" = None
    next: "Span | None" = None

    @property
    def possible_bytes(self) -> int:
        """What it could grow to."""
        following = self.next
        return self.num_bytes + (following.num_bytes if following is not None and not following.is_mapped else 0)


class Stretch:
    """The addresses of one size class. ``free`` spans are ordered by size and address, ``unmapped`` by address."""

    __slots__ = ("free", "page_bytes", "unmapped")

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.free: list[tuple[int, int, Span]] = []
        self.unmapped: list[tuple[int, Span]] = [(0, Span(self, 0, _STRETCH_BYTES, is_mapped=False))]

    def add(self, span: Span) -> None:
        if span.is_mapped:
            insort(self.free, (span.num_bytes, span.address, span))
        else:
            insort(self.unmapped, (span.address, span))

    def remove(self, span: Span) -> None:
        if span.is_mapped:
            del self.free[bisect_left(self.free, (span.num_bytes, span.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (span.address,))]

    def take(self, num_bytes: int) -> Span | None:
        """The smallest free span that is large enough, counting what it could grow to; None if there is none."""
        free = self.free
        place = bisect_left(free, (num_bytes,))
        if place == len(free):
            return None
        while place + 1 < len(free) and free[place + 1][2].possible_bytes < free[place][2].possible_bytes:
            place += 1
        return free.pop(place)[2]

    def room(self, num_bytes: int) -> tuple[Span, int]:
        """The first stretch of free and unmapped spans that is large enough, and the bytes to map for it."""
        for _, span in self.unmapped:
            start = span.previous if span.previous is not None and span.previous.is_free else span
            found, missing, here = 0, 0, start
            while found < num_bytes and here is not None and here.is_free:
                if not here.is_mapped:
                    missing += min(here.num_bytes, -(-(num_bytes - found) // self.page_bytes) * self.page_bytes)
                found += here.num_bytes
                here = here.next
            if found >= num_bytes:
                return start, missing
        raise AssertionError("addresses end")  # there are more than any device has bytes


class ExpandableAllocator:
    """``capacity_bytes``: what may be mapped together; None for no limit."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.was_short = False
        """The capacity did not do for a page: without it more might have been reserved."""
        self.ran_out = False
        """It never goes on where there is no room."""
        self._stretches: dict[int, tuple[Stretch, Stretch]] = {}

    def allocate(self, num_bytes: int, stream: int = 0) -> Span:
        """A span for ``num_bytes``. Raises OutOfDeviceMemory where no page can be mapped any more."""
        size = -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES or MIN_BLOCK_BYTES
        small, large = self._stretches.get(stream) or self._new_stream(stream)
        stretch = small if size <= SMALL_BYTES else large
        span = stretch.take(size) or self._grown(stretch, size)
        span.is_free = False
        if span.num_bytes - size >= MIN_BLOCK_BYTES:
            stretch.add(_cut(span, size))
        self.allocated_bytes += span.num_bytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return span

    def free(self, span: Span) -> None:
        """Give a span back; it merges with free neighbours and stays mapped."""
        self.allocated_bytes -= span.num_bytes
        span.is_free = True
        self._merge(span)
        span.stretch.add(span)

    def empty_cache(self) -> None:
        """Unmap every page on which nothing lives, those of all streams."""
        for stretch in chain.from_iterable(self._stretches.values()):
            for _, _, span in list(stretch.free):
                self._unmap(stretch, span)

    def state(self) -> Hashable:
        """The free and the unmapped spans of every stream: where the next allocations will be."""
        stretches = chain.from_iterable(self._stretches.values())
        return tuple(
            [(tuple([one[:2] for one in of.free]), tuple([start for start, _ in of.unmapped])) for of in stretches]
        )

    def _new_stream(self, stream: int) -> tuple[Stretch, Stretch]:
        stretches = self._stretches[stream] = Stretch(SMALL_SEGMENT_BYTES), Stretch(LARGE_SEGMENT_BYTES)
        return stretches

    def _grown(self, stretch: Stretch, size: int) -> Span:
        """A free span of at least ``size``, taken from its pool."""
        start, missing = stretch.room(size)
        if self.capacity_bytes is not None and self.reserved_bytes + missing > self.capacity_bytes:
            self.was_short = True
            self.empty_cache()
            start, missing = stretch.room(size)
            if self.reserved_bytes + missing > self.capacity_bytes:
                raise OutOfDeviceMemory
        span = start
        if not span.is_mapped:
            span = self._map(stretch, span, min(span.num_bytes, size))
        while span.num_bytes < size:
            following = span.next
            assert following is not None
            span = self._map(stretch, following, min(following.num_bytes, size - span.num_bytes))
        stretch.remove(span)
        return span

    def _map(self, stretch: Stretch, span: Span, num_bytes: int) -> Span:
        """Put pages behind the first ``num_bytes`` of an unmapped span."""
        mapped = -(-num_bytes // stretch.page_bytes) * stretch.page_bytes
        stretch.remove(span)
        if mapped < span.num_bytes:
            stretch.add(_cut(span, mapped))
        span.is_mapped = True
        self._merge(span)
        stretch.add(span)
        self.reserved_bytes += mapped
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return span

    def _unmap(self, stretch: Stretch, span: Span) -> None:
        page = stretch.page_bytes
        begin = -(-span.address // page) * page
        end = (span.address + span.num_bytes) // page * page
        if begin >= end:
            return
        stretch.remove(span)
        if span.address + span.num_bytes > end:
            stretch.add(_cut(span, end - span.address))
        if begin > span.address:
            inner = _cut(span, begin - span.address)
            stretch.add(span)
            span = inner
        span.is_mapped = False
        self.reserved_bytes -= span.num_bytes
        self._merge(span)
        stretch.add(span)

    def _merge(self, span: Span) -> None:
        """Swallow free neighbours of the same kind; ``span`` is in no pool."""
        following, previous = span.next, span.previous
        if following is not None and following.is_free and following.is_mapped == span.is_mapped:
            span.stretch.remove(following)
            span.num_bytes += following.num_bytes
            span.next = following.next
            if span.next is not None:
                span.next.previous = span
        if previous is not None and previous.is_free and previous.is_mapped == span.is_mapped:
            span.stretch.remove(previous)
            span.address, span.num_bytes = previous.address, span.num_bytes + previous.num_bytes
            span.previous = previous.previous
            if span.previous is not None:
                span.previous.next = span


def _cut(span: Span, num_bytes: int) -> Span:
    """Shorten ``span`` to ``num_bytes``; the rest, a free span of the same kind in no pool."""
    rest = Span(span.stretch, span.address + num_bytes, span.num_bytes - num_bytes, is_mapped=span.is_mapped)
    rest.previous, rest.next = span, span.next
    if rest.next is not None:
        rest.next.previous = rest
    span.next, span.num_bytes = rest, num_bytes
    return rest
