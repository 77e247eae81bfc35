"""Memory over time in one line of the terminal, with the phases under it."""

from collections.abc import Sequence

from vlmplan.rehearsal.result import PhaseSpan

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


MOST_LINES = 4
"""Lines that the names of phases may take turns on."""


def phase_lines(marks: Sequence[PhaseSpan], num_events: int, width: int) -> list[str]:
    """Marks of where each phase begins, with its name, in as few lines as have room for all names; the phases take
    turns."""
    lines: list[str] = []
    for count in range(1, min(MOST_LINES, max(1, len(marks))) + 1):
        turns = [marks[start::count] for start in range(count)]
        lines = [phase_line(turn, num_events, width) for turn in turns]
        names = [[text.rstrip() for text in line.split("|")[1:]] for line in lines]
        if names == [[mark.name for mark in turn] for turn in turns]:
            break
    return lines


def phase_line(marks: Sequence[PhaseSpan], num_events: int, width: int) -> str:
    """A bar where each phase begins, and as much of its name as there is room for."""
    cells = [" "] * width
    starts = [mark.begin * width // max(1, num_events) for mark in marks]
    for mark, start, end in zip(marks, starts, [*starts[1:], width], strict=True):
        text = f"|{mark.name}"[: max(0, end - start)]
        cells[start : start + len(text)] = text
    return "".join(cells)[:width].rstrip()
