"""Memory over time as a picture: the components of the device stacked, its phases, its limit and its peak; an SVG that
stands still. The horizontal axis counts allocations and releases.
"""

from collections.abc import Iterator, Sequence

from vlmplan.rehearsal.moments import NAMES, highest_moments
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice
from vlmplan.render.picture import (
    HEIGHT,
    LEFT,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    RIGHT,
    TOP,
    WIDTH,
    markup,
    round_ticks,
    svg_element,
)
from vlmplan.units import GIB, counted, gib_text

CELLS = PLOT_WIDTH // 2
"""Moments that are drawn at most, each the highest of its stretch."""
BEYOND = "beyond"
"""The style of what no tensor is: context and NCCL."""
NUM_TICKS = 6
FAR = 2.0
"""A limit this many times higher than the peak is named but not drawn: the picture would be empty. A choice."""
LETTER_WIDTH = 6
"""Pixels that a letter takes."""


def timeline_picture(found: RehearsedDevice, title: str) -> str:
    """The picture as an element."""
    moments = [(event, [found.device.overhead_bytes, *live]) for event, live in highest_moments(found, CELLS)]
    plot = _Plot(found, moments)
    return svg_element(
        title, [*plot.phases(), *plot.levels(), *plot.areas(), *plot.limit(), *plot.peak(), *plot.legend()]
    )


def timeline_places(found: RehearsedDevice, title: str) -> tuple[str, str]:
    """The timeline's places in a report: the picture that stands still, and room for the one that moves."""
    return f'<div id="timeline-still">\n{timeline_picture(found, title)}\n</div>', '<div id="timeline"></div>'


class _Plot:
    """``moments``: how many events happened, and bytes from the bottom up."""

    def __init__(self, found: RehearsedDevice, moments: Sequence[tuple[int, Sequence[int]]]) -> None:
        self._found, self._moments = found, moments
        self._names = (BEYOND, *NAMES)
        self._num_events = max(1, len(found.rehearsed.events))
        self._highest = max((sum(live) for _, live in moments), default=0) or 1
        self._limit = found.device.usable_bytes
        self._shows_limit = self._limit <= FAR * self._highest
        self._end = 1.04 * max(self._highest, self._limit if self._shows_limit else 0)

    def _x(self, event: float) -> float:
        return LEFT + PLOT_WIDTH * event / self._num_events

    def _y(self, num_bytes: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - num_bytes / self._end)

    def phases(self) -> Iterator[str]:
        """A rectangle for each, with its name where there is room."""
        for place, mark in enumerate(self._found.rehearsed.marks):
            x, end = self._x(mark.begin), self._x(mark.end)
            name = f"{mark.name} {mark.step}" if mark.step else mark.name
            yield (
                f'<rect x="{x:.1f}" y="{TOP}" width="{end - x:.1f}" height="{PLOT_HEIGHT}" '
                f'class="phase{" odd" * (place % 2)}"><title>{markup(name)}</title></rect>'
            )
            if end - x >= LETTER_WIDTH * len(name):
                yield f'<text x="{x + 3:.1f}" y="{TOP - 5}" class="tick">{markup(name)}</text>'

    def levels(self) -> Iterator[str]:
        for tick in round_ticks(self._end / GIB, NUM_TICKS):
            y = self._y(tick * GIB)
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="tick">{tick:g} GiB</text>'
        events = counted(len(self._found.rehearsed.events), "event")
        yield f'<text x="{LEFT}" y="{HEIGHT - 10}" class="tick">allocations and releases, in order: {events}</text>'

    def areas(self) -> Iterator[str]:
        """The areas from the bottom up; each reaches from the sum of those before it to its own."""
        below = [0] * len(self._moments)
        for place, name in enumerate(self._names):
            above = [low + live[place] for low, (_, live) in zip(below, self._moments, strict=True)]
            if above != below:
                yield f'<path d="{self._outline(below, above)}" class="{name}"/>'
            below = above

    def _outline(self, below: Sequence[int], above: Sequence[int]) -> str:
        xs = [round(self._x(event)) for event, _ in self._moments]
        forth = zip(xs, (round(self._y(one)) for one in above), strict=True)
        back = zip(reversed(xs), (round(self._y(one)) for one in reversed(below)), strict=True)
        return f"M{_path(forth)}L{_path(back)}Z"

    def limit(self) -> Iterator[str]:
        text = f"{gib_text(self._limit)} usable"
        if not self._shows_limit:
            yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">{text} is far above</text>'
            return
        y = self._y(self._limit)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="limit"/>'
        yield f'<text x="{WIDTH - RIGHT}" y="{y + 14:.1f}" text-anchor="end">{text}</text>'

    def peak(self) -> Iterator[str]:
        if not self._moments:
            return
        event, live = max(self._moments, key=lambda moment: sum(moment[1]))
        x, y = self._x(event), self._y(sum(live))
        anchor, beside = ("end", x - 8) if x > WIDTH / 2 else ("start", x + 8)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="peak"/>'
        yield f'<text x="{beside:.1f}" y="{y - 6:.1f}" text-anchor="{anchor}">peak {gib_text(sum(live))}</text>'

    def legend(self) -> Iterator[str]:
        x = LEFT
        for place, name in enumerate(self._names):
            if any(live[place] for _, live in self._moments):
                text = "beside tensors" if name == BEYOND else name.replace("_", " ")
                yield f'<rect x="{x}" y="{TOP - 32}" width="10" height="10" class="{name}"/>'
                yield f'<text x="{x + 14}" y="{TOP - 23}">{text}</text>'
                x += 24 + LETTER_WIDTH * len(text)


def _path(points: Iterator[tuple[int, int]]) -> str:
    """Absolute at first, then steps; points at which nothing turns are left out."""
    (x, y), *others = points
    parts = [f"{x} {y}"]
    for next_x, next_y in others:
        across, up = next_x - x, next_y - y
        if up:
            parts.append(f"l{across} {up}")
            x, y = next_x, next_y
    last = others[-1][0] if others else x
    return "".join([*parts, f"H{last}"])
