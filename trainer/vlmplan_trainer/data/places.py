"""Where tokens and characters stand, in a text and in what a processor writes in its place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlmplan.chats.learnt import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTokens:
    """The images, videos and sounds of a sample in its text: where each placeholder stands, and the tokens gained up to
    and with it."""

    places: tuple[tuple[int, int], ...]
    num_reduced: int = 0
    """Images that are made smaller."""
    ends: tuple[tuple[int, int], ...] = ()
    """Where what is text itself ends in the text before and after it is written out."""

    def moved(self, character: int) -> int:
        """Where a character of the text stands in that which is written out."""
        gained = [after - before for before, after in self.ends if before <= character]
        return character + (gained[-1] if gained else 0)

    def tokens_gained(self, character: int) -> int:
        """Tokens that the text has more before ``character``, once placeholders are written out."""
        return max((gained for place, gained in self.places if place < character), default=0)


def overlapping(offsets: Tensor, spans: Sequence[Span]) -> Tensor:
    """Whether each token shares a character with one of ``spans``. ``offsets`` is (tokens, 2); shape (tokens,)."""
    start, end = offsets[:, 0], offsets[:, 1]
    found = torch.zeros_like(start, dtype=torch.bool)
    for first, last in spans:
        found |= start.clamp(min=first) < end.clamp(max=last)
    return found


def moved(character: int, places: Sequence[dict[str, Any]]) -> int:
    """The place of a character of the text after placeholders before it were written out."""
    gained = [place["new_span"][1] - place["span"][1] for place in places if place["span"][1] <= character]
    return character + (gained[-1] if gained else 0)


def last(found: Tensor) -> int:
    """The last true place; -1 if there is none."""
    places = found.nonzero()
    return int(places.max()) if len(places) else -1
