"""torch's caching allocator: which device memory it reserves for a sequence of allocations.

A model of the native backend with its default settings. Source: ``c10/cuda/CUDACachingAllocator.cpp`` (torch 2.13):
``get_pool``, ``get_free_block``, ``get_allocation_size``, ``should_split``, ``try_merge_blocks``,
``release_cached_blocks``.

What one stream frees is kept for that stream; only the device's memory is shared. A block is free for its stream as
soon as it is freed, as if other streams that used it (``record_stream``) had done with it.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from itertools import chain
from typing import Final

from vlmplan.units import KIB, MIB

MIN_BLOCK_BYTES: Final = KIB // 2
"""All sizes are rounded up to a multiple of this (``kMinBlockSize``)."""
SMALL_BYTES: Final = MIB
"""Largest allocation that is served from the small pool (``kSmallSize``); what is left of a large block splits off
only above it."""
SMALL_SEGMENT_BYTES: Final = 2 * MIB
"""Segment of the small pool (``kSmallBuffer``)."""
LARGE_SEGMENT_BYTES: Final = 20 * MIB
"""Segment for allocations below ``MIN_LARGE_BYTES`` (``kLargeBuffer``)."""
MIN_LARGE_BYTES: Final = 10 * MIB
"""From here on a segment is as large as the allocation (``kMinLargeAlloc``), ..."""
SEGMENT_ROUNDING_BYTES: Final = 2 * MIB
"""... rounded up to a multiple of this (``kRoundLarge``)."""
_SEGMENT_DISTANCE: Final = 2**50
"""Addresses of different segments are never neighbours."""


class OutOfDeviceMemory(Exception):
    """Raised where not even empty segments make room: what torch reports as out of memory."""


class TooMuchReserved(Exception):
    """Raised where more is reserved than whoever asks has use for."""


class Block:
    """A stretch of a segment, handed out or free, between its neighbours in the segment."""

    __slots__ = ("address", "is_free", "next", "num_bytes", "pool", "previous")

    def __init__(
        self,
        pool: "Pool",
        address: int,
        num_bytes: int,
        previous: "Block | None" = None,
        following: "Block | None" = None,
    ) -> None:
        self.pool, self.address, self.num_bytes = pool, address, num_bytes
        self.previous, self.next, self.is_free = previous, following, False


class Pool:
    """The free blocks of one size class, ordered by size and address: the first that is large enough is taken.

    What is left of a block splits off if it has ``min_rest_bytes``.
    """

    __slots__ = ("free", "min_rest_bytes")

    def __init__(self, *, min_rest_bytes: int) -> None:
        self.min_rest_bytes = min_rest_bytes
        self.free: list[tuple[int, int, Block]] = []

    def add(self, block: Block) -> None:
        block.is_free = True
        insort(self.free, (block.num_bytes, block.address, block))

    def remove(self, block: Block) -> None:
        free = self.free
        del free[bisect_left(free, (block.num_bytes, block.address))]
        block.is_free = False


class CachingAllocator:
    """``capacity_bytes``: what segments may take together; None for no limit. ``most_bytes``: what they may before it
    is given up, which no torch does; None: it never is. ``goes_on``: where nothing makes room for the first segment for
    which there is none, it goes on as without a limit in place of raising (``ran_out``): up to there it is the same."""

    def __init__(
        self, *, capacity_bytes: int | None = None, most_bytes: int | None = None, goes_on: bool = False
    ) -> None:
        self.capacity_bytes, self.most_bytes, self.goes_on = capacity_bytes, most_bytes, goes_on
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.was_short = False
        """The capacity did not do for a segment: without it more might have been reserved."""
        self.ran_out = False
        self._next_address = 0
        self._pools: dict[int, tuple[Pool, Pool]] = {}

    @property
    def streams(self) -> list[int]:
        """The streams that have asked for memory, in order of their first time."""
        return list(self._pools)

    def allocate(self, num_bytes: int, stream: int = 0) -> Block:
        """A block for ``num_bytes``. Raises OutOfDeviceMemory where no segment fits any more, and TooMuchReserved."""
        size = -(-num_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES or MIN_BLOCK_BYTES
        small, large = self._pools.get(stream) or self._new_stream(stream)
        pool = small if size <= SMALL_BYTES else large
        free = pool.free
        position = bisect_left(free, (size,))
        if position < len(free):
            block = free.pop(position)[2]
            block.is_free = False
        else:
            block = self._new_segment(pool, size)
        rest = block.num_bytes - size
        if rest >= pool.min_rest_bytes:
            following = block.next
            left = Block(pool, block.address + size, rest, block, following)
            if following is not None:
                following.previous = left
            block.next, block.num_bytes = left, size
            pool.add(left)
        self.allocated_bytes += block.num_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block) -> None:
        """Give a block back; it merges with free neighbours and stays reserved."""
        pool = block.pool
        self.allocated_bytes -= block.num_bytes
        previous, following = block.previous, block.next
        if following is not None and following.is_free:
            pool.remove(following)
            block.num_bytes += following.num_bytes
            block.next = following.next
            if block.next is not None:
                block.next.previous = block
        if previous is not None and previous.is_free:
            pool.remove(previous)
            previous.num_bytes += block.num_bytes
            previous.next = block.next
            if previous.next is not None:
                previous.next.previous = previous
            block = previous
        pool.add(block)

    def empty_cache(self) -> None:
        """Give segments without a living block back to the device, those of all streams."""
        for block in list(self._unused_segments()):
            block.pool.remove(block)
            self.reserved_bytes -= block.num_bytes

    def _unused_segments(self) -> Iterator[Block]:
        for pool in chain.from_iterable(self._pools.values()):
            yield from (block for _, _, block in pool.free if block.previous is None and block.next is None)

    def state(self) -> Hashable:
        """The free blocks of every stream, and the address of the next segment: where the next allocations will be."""
        pools = chain.from_iterable(self._pools.values())
        return self._next_address, tuple(tuple(entry[:2] for entry in pool.free) for pool in pools)

    def _new_stream(self, stream: int) -> tuple[Pool, Pool]:
        pools = self._pools[stream] = Pool(min_rest_bytes=MIN_BLOCK_BYTES), Pool(min_rest_bytes=SMALL_BYTES + 1)
        return pools

    def _new_segment(self, pool: Pool, size: int) -> Block:
        if size <= SMALL_BYTES:
            num_bytes = SMALL_SEGMENT_BYTES
        elif size < MIN_LARGE_BYTES:
            num_bytes = LARGE_SEGMENT_BYTES
        else:
            num_bytes = -(-size // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES
        if self.capacity_bytes is not None and self.reserved_bytes + num_bytes > self.capacity_bytes:
            self._make_room(num_bytes, self.capacity_bytes)
        self.reserved_bytes += num_bytes
        if self.most_bytes is not None and self.reserved_bytes > self.most_bytes:
            raise TooMuchReserved
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        block = Block(pool, self._next_address, num_bytes)
        self._next_address += num_bytes + _SEGMENT_DISTANCE
        return block

    def _make_room(self, num_bytes: int, capacity_bytes: int) -> None:
        """Give back what is unused, for a segment for which there is no room."""
        unused_bytes = sum([block.num_bytes for block in self._unused_segments()])
        if self.reserved_bytes - unused_bytes + num_bytes > capacity_bytes:
            if self.was_short or not self.goes_on:
                raise OutOfDeviceMemory
            self.ran_out, self.capacity_bytes = True, None
        else:
            self.was_short = True
            self.empty_cache()
