"""Which blocks an engine asks the allocator for, and on which stream.

The simulations of gradients and gathered weights count bytes; they tell a ``Watcher`` besides what those bytes are made
of, for a replay of torch's allocator to follow.
"""

from collections.abc import Hashable, Sequence
from enum import IntEnum

from vlmplan.memory.allocator import Block, CachingAllocator


class Stream(IntEnum):
    """Streams on which DeepSpeed asks for memory; with ``overlap_comm`` off all are the default one.

    Sources (0.19.8): ``reduction_stream`` in ``stage_1_and_2.py`` and ``reduce_and_partition_stream`` in ``stage3.py``;
    ``__allgather_stream`` in ``parameter_offload.py``.
    """

    DEFAULT = 0
    REDUCTION = 1
    GATHER = 2


class Watcher:
    """Takes no notice."""

    def make(self, owner: Hashable, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        """``owner`` gets a block, and has no other."""

    def free(self, owner: Hashable) -> None:
        """The block of ``owner`` goes, if it has one."""

    def replace(self, owner: Hashable, num_bytes: int) -> None:
        """``owner`` gets a block of ``num_bytes`` on the default stream for the one it has."""

    def pass_through(self, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        """Blocks of these ``sizes`` are made one after another and freed together."""


UNWATCHED = Watcher()


class EngineBlocks(Watcher):
    """The blocks of an engine, from one allocator."""

    def __init__(self, allocator: CachingAllocator, *, has_streams: bool) -> None:
        self._allocator, self._has_streams = allocator, has_streams
        self._blocks: dict[Hashable, Block] = {}

    def make(self, owner: Hashable, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        if num_bytes:
            self._blocks[owner] = self._allocate(num_bytes, stream)

    def free(self, owner: Hashable) -> None:
        block = self._blocks.pop(owner, None)
        if block is not None:
            self._allocator.free(block)

    def replace(self, owner: Hashable, num_bytes: int) -> None:
        block = self._blocks.get(owner)
        if block is not None:
            self._blocks[owner] = self._allocate(num_bytes, Stream.DEFAULT)
            self._allocator.free(block)

    def pass_through(self, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        blocks = [self._allocate(num_bytes, stream) for num_bytes in sizes if num_bytes > 0]
        for block in blocks:
            self._allocator.free(block)

    def keep(self, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        """A block that stays for good."""
        if num_bytes:
            self._allocate(num_bytes, stream)

    def adopt(self, owner: Hashable, block: Block) -> None:
        """``owner`` gets a block that is there already."""
        self._blocks[owner] = block

    def rename(self, owner: Hashable, new_owner: Hashable) -> None:
        """The block of ``owner``, if it has one, is ``new_owner``'s from now on."""
        if owner in self._blocks:
            self._blocks[new_owner] = self._blocks.pop(owner)

    def has(self, owner: Hashable) -> bool:
        return owner in self._blocks

    def state(self) -> Hashable:
        """Who has a block, and where."""
        return frozenset((owner, block.address, block.num_bytes) for owner, block in self._blocks.items())

    def _allocate(self, num_bytes: int, stream: Stream) -> Block:
        return self._allocator.allocate(num_bytes, stream if self._has_streams else Stream.DEFAULT)


class BlockLog(Watcher):
    """Writes down what happens, for the same events to be replayed more than once."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int]] = []
        """(handle, bytes): a block is made, or freed where the bytes are 0. All are of one stream."""
        self._handles: dict[Hashable, int] = {}
        self._last = 0

    def make(self, owner: Hashable, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self._handles[owner] = self._note(num_bytes)

    def free(self, owner: Hashable) -> None:
        handle = self._handles.pop(owner, None)
        if handle is not None:
            self.changes.append((handle, 0))

    def pass_through(self, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        handles = [self._note(num_bytes) for num_bytes in sizes]
        self.changes += [(handle, 0) for handle in handles]

    def free_all(self) -> None:
        self.changes += [(handle, 0) for handle in self._handles.values()]
        self._handles.clear()

    def taken(self) -> list[tuple[int, int]]:
        """What has happened since the last call."""
        changes, self.changes = self.changes, []
        return changes

    def _note(self, num_bytes: int) -> int:
        self._last += 1
        self.changes.append((self._last, num_bytes))
        return self._last


__all__ = ["UNWATCHED", "BlockLog", "EngineBlocks", "Stream", "Watcher"]
