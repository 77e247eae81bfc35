"""Replacing parts of a text and leaving every other character as it is."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Splice:
    """``text`` in place of the characters from ``start`` to before ``end``; an insertion where they are the same."""

    start: int
    end: int
    text: str


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """``text`` with all of them made; those at the same place in their order. They must not overlap."""
    parts: list[str] = []
    position = 0
    for splice in sorted(splices, key=lambda one: (one.start, one.end)):
        assert splice.start >= position, "two changes of the same characters"
        parts += [text[position : splice.start], splice.text]
        position = splice.end
    return "".join([*parts, text[position:]])


def line_start(text: str, position: int) -> int:
    """The position at which the line begins that ``position`` is in."""
    return text.rfind("\n", 0, position) + 1


def line_end(text: str, position: int) -> int:
    """The place before the end of the line that ``position`` is in: ``\\r\\n`` and ``\\n`` alike."""
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    return end - 1 if end > position and text[end - 1 : end] == "\r" else end


def newline_of(text: str) -> str:
    """How its lines end."""
    return "\r\n" if "\r\n" in text else "\n"


def indentation(text: str, position: int) -> str:
    """Blanks at the beginning of the line that ``position`` is in."""
    line = text[line_start(text, position) : line_end(text, position)]
    return line[: len(line) - len(line.lstrip())]
