"""Cost against time on logarithmic axes: in characters for the terminal, and the axes that the picture shares.

The fastest are on the left, the cheapest at the bottom: the front runs from the upper left to the lower right.
"""

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from vlmplan.search.pareto import Point
from vlmplan.units import count_text, usd_text

HEIGHT = 15
"""Rows of the plot in the terminal."""
MARGIN = 10
"""Columns for the prices on the left."""
LEAST_SPREAD = 1.25
"""An axis goes at least this factor beyond its only value, so that one point is no division by nothing. A choice."""
MARKS = "·o★"
PLAIN_MARKS = ".ox"
"""Others, the front, the winner; the second for terminals that have only ASCII."""
COUNTS = (1, 2, 5), tuple(range(1, 10)), tuple(count / 10 for count in range(10, 100))
"""What ticks are of a power of ten, the coarsest first."""
SECOND, MINUTE, HOUR, DAY = 1 / 3600, 1 / 60, 1, 24
TIME_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
TIME_TICKS = (
    *(SECOND * count for count in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30)),
    *(MINUTE * count for count in (1, 2, 5, 10, 20, 30)),
    *(HOUR * count for count in (1, 2, 4, 8)),
    *(DAY * count * 10**power for power in range(9) for count in (1, 2, 5)),
)


class LogAxis(NamedTuple):
    """A logarithmic axis from ``low`` to ``high``, both above 0."""

    low: float
    high: float

    def fraction(self, value: float) -> float:
        """The part of the way from one end to the other, within 0 and 1."""
        whole = log10(self.high / self.low)
        return min(1.0, max(0.0, log10(max(value, self.low) / self.low) / whole))

    def within(self, values: Sequence[float]) -> list[float]:
        return [value for value in values if self.low <= value <= self.high]


def axis_of(values: Sequence[float]) -> LogAxis:
    """An axis that has every value, with a little room; what is free counts as the least of the others."""
    known = [value for value in values if value > 0] or [1.0]
    return LogAxis(min(known) / LEAST_SPREAD, max(known) * LEAST_SPREAD)


def usd_ticks(axis: LogAxis) -> list[float]:
    """1, 2 and 5 times powers of ten; more of them where an axis is too short for two of these."""
    powers = range(floor(log10(axis.low)) - 1, ceil(log10(axis.high)) + 1)
    return _enough(axis, *([count * 10.0**power for power in powers for count in counts] for counts in COUNTS))


def hour_ticks(axis: LogAxis) -> list[float]:
    """Round times; more of them where an axis is too short for two of these."""
    units = (
        MINUTE,
        HOUR,
        *(SECOND * 10.0**power for power in range(-3, 2)),
        *(DAY * 10.0**power for power in range(9)),
    )
    finer = ([count * unit for unit in units for count in counts] for counts in COUNTS[1:])
    return _enough(axis, TIME_TICKS, *finer)


def _enough(axis: LogAxis, *grids: Sequence[float]) -> list[float]:
    """The values of the coarsest grid that has two within the axis; the ends and the middle of a finer one."""
    for is_finer, grid in enumerate(grids):
        ticks = sorted(set(axis.within(grid)))
        if len(ticks) > 1:
            return [ticks[place] for place in sorted({0, len(ticks) // 2, len(ticks) - 1})] if is_finer else ticks
    return [axis.low, axis.high]


def tick_text(hours: float) -> str:
    """A tick in the largest unit of which it is one or more.

    >>> tick_text(0.5), tick_text(2), tick_text(10 / 3600), tick_text(48)
    ('30 min', '2 h', '10 s', '2 d')
    """
    for unit, name in TIME_UNITS:
        if hours >= unit * 0.999:
            return f"{hours / unit:g} {name}"
    return f"{hours / SECOND:g} s"


def usd_tick_text(usd: float) -> str:
    """A price of an axis, short: no cents where there are none, thousands by their letter.

    >>> usd_tick_text(5.0), usd_tick_text(0.5), usd_tick_text(0.0002), usd_tick_text(20_000.0)
    ('$5', '$0.50', '$0.0002', '$20 k')
    """
    if usd >= 10_000:
        return f"${count_text(usd)}"
    if usd >= 1:
        return f"${usd:,.0f}" if usd == round(usd) else f"${usd:,.2f}"
    return usd_text(usd) if usd >= 0.001 else f"${usd:.2g}"


def scatter_lines(
    points: Sequence[Point], front: Sequence[Point], winner: tuple[float, float], *, width: int, marks: str = MARKS
) -> list[str]:
    """The plot in at most ``width`` columns; ``winner`` is (hours, usd), ``marks`` are others, front and winner."""
    every = [*((point.hours, point.usd) for point in points), winner]
    across, up = axis_of([hours for hours, _ in every]), axis_of([usd for _, usd in every])
    columns = width - MARGIN
    grid = [[" "] * columns for _ in range(HEIGHT)]
    layers = (every, [(point.hours, point.usd) for point in front], [winner])
    for mark, layer in zip(marks, layers, strict=True):
        for hours, usd in layer:
            grid[_row(up, usd)][_column(across, hours, columns)] = mark
    prices = {_row(up, usd): usd_tick_text(usd) for usd in reversed(usd_ticks(up))}
    lines = [f"{prices.get(row, ''):>{MARGIN - 2}} |{''.join(cells)}".rstrip() for row, cells in enumerate(grid)]
    return [*lines, *_bottom(across, columns)]


def _row(axis: LogAxis, usd: float) -> int:
    return HEIGHT - 1 - round(axis.fraction(usd) * (HEIGHT - 1))


def _column(axis: LogAxis, hours: float, columns: int) -> int:
    return round(axis.fraction(hours) * (columns - 1))


def _bottom(axis: LogAxis, columns: int) -> Iterator[str]:
    """The axis of time: a mark and a text for every tick that there is room for."""
    rule, texts, free = ["-"] * columns, [" "] * columns, 0
    for hours in hour_ticks(axis):
        column, text = _column(axis, hours, columns), tick_text(hours)
        start = min(max(0, column - len(text) // 2), columns - len(text))
        if start < free:
            continue
        rule[column] = "+"
        texts[start : start + len(text)] = text
        free = start + len(text) + 2
    yield " " * (MARGIN - 1) + "+" + "".join(rule)
    yield (" " * MARGIN + "".join(texts)).rstrip()
