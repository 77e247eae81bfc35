"""The micro batches of a step that are on the GPU from its beginning (``Recipe.keeps_batches``), as the caching
allocator meets them: those of a step come before those of the step before go, since ``get_batch_samples`` returns
before ``batch_samples`` names them (transformers 5.23 ``trainer.py``)."""

from collections.abc import Hashable, Iterable, Sequence

from vlmplan.memory.allocator import Block, CachingAllocator


class StepBatches:
    """``sizes``: bytes of each tensor of a micro batch as it is sent; ``count`` of them are in a step."""

    def __init__(self, allocator: CachingAllocator, sizes: Sequence[int], count: int) -> None:
        self._allocator, self._sizes, self._count = allocator, sizes, count
        self._held: list[list[Block]] = []

    def come(self) -> None:
        """Those of the next step, and then those of the last one go."""
        before, self._held = self._held, [self._sent() for _ in range(self._count)]
        for blocks in before:
            self._free(blocks)

    def matching(self, place: int, made: Iterable[tuple[int, int]]) -> dict[int, Block]:
        """The tensors of one of them by the handles of ``made``, the storages that its trace makes for its batch in the
        order in which they are sent: each with its bytes. Those that are cast for the forward are none."""
        found: dict[int, Block] = {}
        blocks = list(zip(self._sizes, self._held[place], strict=True)) if self._held else []
        for handle, num_bytes in made:
            if blocks and num_bytes == blocks[0][0]:
                found[handle] = blocks.pop(0)[1]
        return found

    def state(self) -> Hashable:
        """Of what a step finds: blocks that go when the next one begins."""
        return tuple((block.address, block.num_bytes) for blocks in self._held for block in blocks)

    def _sent(self) -> list[Block]:
        return [self._allocator.allocate(num_bytes) for num_bytes in self._sizes]

    def _free(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._allocator.free(block)
