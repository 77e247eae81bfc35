"""Memory over time in one line of the terminal, with the phases under it."""

from collections.abc import Sequence

from vlmplan.rehearsal.result import Mark

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*#@"
"""For terminals that have no block elements."""


def highest_per_cell(totals: Sequence[int], width: int) -> list[int]:
    """The highest of each of ``width`` equal stretches of ``totals``; cells of a short trace repeat its values."""
    count = len(totals)
    found: list[int] = []
    for cell in range(width if count else 0):
        begin = cell * count // width
        found.append(max(totals[begin : max(begin + 1, (cell + 1) * count // width)]))
    return found


def sparkline(totals: Sequence[int], width: int, *, levels: str = BLOCKS) -> str:
    """``totals`` from 0 to their highest, in ``width`` cells of as many levels as there are characters."""
    highest = max(totals, default=0) or 1
    last = len(levels) - 1
    return "".join(levels[-(-value * last // highest)] for value in highest_per_cell(totals, width))


def phase_line(marks: Sequence[Mark], num_events: int, width: int) -> str:
    """A bar where each phase begins, and as much of its name as there is room for."""
    cells = [" "] * width
    starts = [mark.begin * width // max(1, num_events) for mark in marks]
    for mark, start, end in zip(marks, starts, [*starts[1:], width], strict=True):
        text = f"|{mark.name}"[: max(0, end - start)]
        cells[start : start + len(text)] = text
    return "".join(cells)[:width].rstrip()
