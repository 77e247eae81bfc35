"""Memory over time as a picture: one SVG without scripts, by itself or in an HTML page with the tables beside it.

The horizontal axis counts allocations and releases; each phase has its own background, the peak a mark.
"""

from collections.abc import Iterator, Sequence

from vlmplan.answers.estimate import heading, setup_text
from vlmplan.answers.rehearsal import error_text, rehearsed_line, shape_text, verdict_line
from vlmplan.rehearsal.comparison import Comparison
from vlmplan.render.picture import (
    HEIGHT,
    LEFT,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    RIGHT,
    TOP,
    WIDTH,
    html_table,
    markup,
    page,
    paragraph,
    svg_element,
    svg_file,
)
from vlmplan.render.sparkline import highest_per_cell
from vlmplan.units import gib_text

MAX_POINTS = PLOT_WIDTH
NUM_LINES = 5
"""Horizontal lines above the bottom."""
NAME_WIDTH = 6
"""Pixels that a letter of a phase's name takes."""
FILLS = {
    "load": "#eeeeee",
    "init": "#e3e3f5",
    "forward": "#e0f0e0",
    "backward": "#f5e6da",
    "step": "#f5f2d0",
    "evaluation": "#e0eef5",
    "save": "#e8e8e8",
}


def svg_text(found: Comparison) -> str:
    """A whole SVG file."""
    return svg_file(_svg(found))


def html_text(found: Comparison) -> str:
    """A whole page: the plot, each phase beside its estimate, the components and the largest storages at the peak."""
    sentences = (paragraph(rehearsed_line(found)), paragraph(_plain_verdict(found)))
    return page(_title(found), [*sentences, _svg(found), *_tables(found)])


def _title(found: Comparison) -> str:
    return f"{heading(found.estimate)}; {setup_text(found.estimate)}"


def _plain_verdict(found: Comparison) -> str:
    import click

    return click.unstyle(verdict_line(found))


def _svg(found: Comparison) -> str:
    totals = found.live_bytes
    highest = max(totals, default=0) or 1
    lines = [
        *_backgrounds(found),
        *_levels(highest),
        f'<path d="{_path(totals, highest)}" fill="#4878a8" fill-opacity="0.5" stroke="#20486e"/>',
        *_peak(totals, highest),
        f'<text x="{LEFT}" y="{HEIGHT - 10}">allocations and releases, 0 to {len(totals):,}</text>',
    ]
    return svg_element(_title(found), lines)


def _x(index: float, num_events: int) -> float:
    return LEFT + PLOT_WIDTH * index / max(1, num_events)


def _y(num_bytes: float, highest: int) -> float:
    return TOP + PLOT_HEIGHT * (1 - num_bytes / highest)


def _backgrounds(found: Comparison) -> Iterator[str]:
    """A rectangle a phase, with its name where there is room."""
    marks, count = found.rehearsed.marks, len(found.rehearsed.events)
    for mark in marks:
        x, end = _x(mark.begin, count), _x(mark.end, count)
        name = f"{mark.name} {mark.step}" if mark.step else mark.name
        yield (
            f'<rect x="{x:.1f}" y="{TOP}" width="{end - x:.1f}" height="{PLOT_HEIGHT}" '
            f'fill="{FILLS.get(mark.name, "#ffffff")}"><title>{markup(name)}</title></rect>'
        )
        if end - x >= NAME_WIDTH * len(name):
            yield f'<text x="{x + 3:.1f}" y="{TOP - 5}" font-size="11">{markup(name)}</text>'


def _levels(highest: int) -> Iterator[str]:
    for line in range(NUM_LINES + 1):
        num_bytes = highest * line / NUM_LINES
        y = _y(num_bytes, highest)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#bbbbbb" stroke-width="0.5"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{gib_text(num_bytes)}</text>'


def _path(totals: Sequence[int], highest: int) -> str:
    """The outline of the area; long traces keep the highest moment of every pixel."""
    cells = highest_per_cell(totals, min(len(totals), MAX_POINTS))
    points = [f"{_x(place + 1, len(cells)):.1f} {_y(value, highest):.1f}" for place, value in enumerate(cells)]
    bottom = f"{_y(0, highest):.1f}"
    return " L".join([f"M{LEFT} {bottom}", *points, f"{WIDTH - RIGHT} {bottom}"]) + "Z"


def _peak(totals: Sequence[int], highest: int) -> Iterator[str]:
    if not totals:
        return
    x = _x(totals.index(highest) + 1, len(totals)) if highest in totals else LEFT
    anchor = "end" if x > WIDTH / 2 else "start"
    yield f'<circle cx="{x:.1f}" cy="{_y(highest, highest):.1f}" r="4" fill="#c03030"/>'
    yield (
        f'<text x="{x - 8 if anchor == "end" else x + 8:.1f}" y="{TOP + 14}" text-anchor="{anchor}" fill="#c03030" '
        f'stroke="#ffffff" stroke-width="3" paint-order="stroke">peak {gib_text(highest)}</text>'
    )


def _tables(found: Comparison) -> Iterator[str]:
    yield html_table(
        ("phase", "after", "peak", "estimated peak", "error"),
        [
            (
                phase.name,
                gib_text(phase.rehearsed.resident_bytes),
                gib_text(phase.rehearsed.peak_bytes),
                gib_text(phase.estimated.peak.total),
                error_text(phase.peak_error),
            )
            for phase in found.phases
        ],
    )
    estimated = found.estimated_peak.as_json()
    yield html_table(
        (f"at the peak of {found.peak.name}", "rehearsed", "estimated"),
        [
            (name.replace("_", " "), gib_text(num_bytes), gib_text(estimated[name]))
            for name, num_bytes in found.peak.components.as_json().items()
        ],
    )
    yield html_table(
        ("largest at the peak", "bytes", "tensor", "made by"),
        [(one.component, gib_text(one.num_bytes), shape_text(one), one.maker) for one in found.largest],
    )
