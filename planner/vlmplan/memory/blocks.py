"""An engine's tensors as blocks of torch's caching allocator."""

from collections.abc import Hashable, Sequence

from vlmplan.engines.events import Component, Sink, Stream
from vlmplan.memory.allocator import Block, CachingAllocator

Change = tuple[int, int, Stream]
"""(handle, bytes, stream): a block is made, or freed where the bytes are 0."""


class EngineBlocks(Sink):
    """The blocks of an engine, from one allocator. Without ``has_streams`` all are allocated on the default stream."""

    def __init__(self, allocator: CachingAllocator, *, has_streams: bool) -> None:
        self._allocator, self._has_streams = allocator, has_streams
        self._blocks: dict[Hashable, Block] = {}

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        if num_bytes:
            assert owner not in self._blocks, owner
            self._blocks[owner] = self._new(num_bytes, stream)

    def keep(self, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        if num_bytes:
            self._new(num_bytes, stream)

    def free(self, owner: Hashable) -> None:
        block = self._blocks.pop(owner, None)
        if block is not None:
            self._allocator.free(block)

    def clone(self, owner: Hashable, num_bytes: int) -> None:
        block = self._blocks.get(owner)
        if block is not None:
            self._blocks[owner] = self._new(num_bytes, Stream.DEFAULT)
            self._allocator.free(block)

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        blocks = [self._new(num_bytes, stream) for num_bytes in sizes if num_bytes > 0]
        for block in blocks:
            self._allocator.free(block)

    def rename(self, owner: Hashable, new_owner: Hashable) -> None:
        if owner in self._blocks:
            self._blocks[new_owner] = self._blocks.pop(owner)

    def empty_cache(self) -> None:
        self._allocator.empty_cache()

    def hand_over(self, ordinal: int, block: Block) -> None:
        """A gradient's block becomes the engine's, or is added to the one that is there and freed."""
        if ordinal in self._blocks:
            self._allocator.free(block)
        else:
            self._blocks[ordinal] = block

    def state(self) -> Hashable:
        """The owner, place and size of every block that is held."""
        return frozenset((owner, block.address, block.num_bytes) for owner, block in self._blocks.items())

    def _new(self, num_bytes: int, stream: Stream) -> Block:
        return self._allocator.allocate(num_bytes, stream if self._has_streams else Stream.DEFAULT)


class BlockLog(Sink):
    """Writes down what happens, for the same events to be replayed more than once."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._handles: dict[Hashable, int] = {}
        self._last = 0

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self._handles[owner] = self._new(num_bytes, stream)

    def free(self, owner: Hashable) -> None:
        handle = self._handles.pop(owner, None)
        if handle is not None:
            self.changes.append((handle, 0, Stream.DEFAULT))

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        handles = [self._new(num_bytes, stream) for num_bytes in sizes]
        self.changes += [(handle, 0, Stream.DEFAULT) for handle in handles]

    def free_all(self) -> None:
        self.changes += [(handle, 0, Stream.DEFAULT) for handle in self._handles.values()]
        self._handles.clear()

    def taken(self) -> list[Change]:
        """What has happened since the last call."""
        changes, self.changes = self.changes, []
        return changes

    def _new(self, num_bytes: int, stream: Stream) -> int:
        self._last += 1
        self.changes.append((self._last, num_bytes, stream))
        return self._last
