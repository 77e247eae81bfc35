"""The forward over a generated token, again and again, for torch's caching allocator.

What takes a small block is left out: small blocks have segments of their own, which the forward over the prompts has
filled with more.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vlmplan.architecture.storage_log import EngineEvent, Operations
from vlmplan.architecture.trace import Cached, KeptCast
from vlmplan.memory.allocator import SMALL_BYTES, Block, CachingAllocator

Step = tuple[int, int, bool]
"""(handle, bytes, whether keys or values are made longer): 0 bytes free."""


class GenerationOperations(NamedTuple):
    """The forward over the prompts, and that over one token of each row behind them."""

    prompt: Operations
    token: Operations


class ReplayedTokens:
    """``cache`` is what ``prompt_tokens`` have left that each token makes longer, in the order of the forward."""

    def __init__(self, token: Operations, cache: list[Block], prompt_tokens: int, allocator: CachingAllocator) -> None:
        self.cache, self._prompt_tokens, self._allocator = cache, prompt_tokens, allocator
        self._steps = list(_steps(token))
        self._bytes_of_token = [block.num_bytes // prompt_tokens for block in cache]

    def run(self, number: int) -> None:
        """The forward over the token of this ``number``, from 1 on. Keys and values are joined to a tensor that is one
        token longer, and go (``DynamicLayer.update`` in transformers 5.23 ``cache_utils.py``)."""
        allocator, made = self._allocator, dict[int, Block]()
        places = iter(range(len(self.cache)))
        for handle, num_bytes, grows in self._steps:
            if grows:
                self._grow(next(places, None), number)
            elif num_bytes:
                made[handle] = allocator.allocate(num_bytes)
            else:
                allocator.free(made.pop(handle))
        for place in places:
            self._grow(place, number)
        for block in made.values():
            allocator.free(block)

    def _grow(self, place: int | None, number: int) -> None:
        if place is None:
            return
        longer = self._allocator.allocate(self._bytes_of_token[place] * (self._prompt_tokens + number))
        self._allocator.free(self.cache[place])
        self.cache[place] = longer


def _steps(token: Operations) -> Iterator[Step]:
    """What ``token`` makes and frees of more than small blocks. Casts that autocast keeps have no handles there."""
    events = [one for one in token.forward if isinstance(one, EngineEvent)]
    grows = {one.handle: one.event.grows for one in events if isinstance(one.event, Cached)}
    large: set[int] = set()
    for number, one in enumerate(token.forward):
        if isinstance(one, EngineEvent):
            if isinstance(one.event, KeptCast) and one.event.num_bytes > SMALL_BYTES:
                yield -number, one.event.num_bytes, False
            continue
        handle, num_bytes = one
        if handle in grows:
            if grows[handle]:
                yield handle, num_bytes, True
        elif num_bytes > SMALL_BYTES:
            large.add(handle)
            yield handle, num_bytes, False
        elif not num_bytes and handle in large:
            yield handle, 0, False
