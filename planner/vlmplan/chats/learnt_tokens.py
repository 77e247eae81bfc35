"""Tokens whose characters are learnt, by an encoding of the package tokenizers: those that have labels."""

from collections.abc import Sequence
from typing import Any

from vlmplan.chats.learnt import Span


def learnt_tokens(encoding: Any, spans: Sequence[Span]) -> list[Span]:
    """From which to before which token an encoding of ``tokenizers`` shares characters with each of ``spans``, which
    are in order. The first token of a text is predicted from nothing, so it is never among them."""
    found: list[Span] = []
    for first, last in spans:
        begin, end = _token_at(encoding, first, last), _token_at(encoding, last - 1, first - 1)
        if begin is None or end is None:
            continue
        end += 1
        while end < len(encoding.ids) and _is_in(encoding.token_to_chars(end), last):
            end += 1
        found.append((max(begin, found[-1][1] if found else 1), end))
    return [(begin, end) for begin, end in found if begin < end]


def _token_at(encoding: Any, place: int, stop: int) -> int | None:
    """The first token with the character at ``place``, or the next one before ``stop`` that has a token."""
    step = 1 if place < stop else -1
    return next((token for at in range(place, stop, step) if (token := encoding.char_to_token(at)) is not None), None)


def _is_in(characters: Span | None, last: int) -> bool:
    """Whether a token is one more of the character before ``last``."""
    return characters is not None and characters[0] < min(characters[1], last)
