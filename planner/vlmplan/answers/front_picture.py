"""Cost against time as a picture: every setup a dot in the colour of its method, the front a line through its own."""

from collections.abc import Iterator, Sequence

from vlmplan.answers.offers import money_line
from vlmplan.recipe.choices import SEARCHED_METHODS, Method
from vlmplan.render.picture import (
    HEIGHT,
    LEFT,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    RIGHT,
    TOP,
    WIDTH,
    markup,
    svg_element,
    svg_file,
)
from vlmplan.render.scatter import LogAxis, axis_of, hour_ticks, tick_text, usd_tick_text, usd_ticks
from vlmplan.search import Recommendation
from vlmplan.search.explanation import machine_label
from vlmplan.search.pareto import Point
from vlmplan.units import SECONDS_PER_HOUR, counted, duration_text, usd_text

WINNER = "winner-dot"
"""The style of the first plan."""
LETTER_WIDTH = 7
"""Pixels that a letter of a tick takes."""


def svg_text(found: Recommendation) -> str:
    """A whole SVG file."""
    return svg_file(front_picture(found))


def _title(found: Recommendation) -> str:
    return f"{found.workload.model.id}: cost against time of {counted(len(found.scored), 'setup')} that fit"


def front_picture(found: Recommendation) -> str:
    """The picture as an element."""
    if not found.scored:
        text = f'<text x="{LEFT}" y="{HEIGHT / 2}">no price or no speed is known of anything that fits</text>'
        return svg_element(_title(found), [text])
    plot = _Plot(found.scored)
    layers = (plot.grid(), _legend(found), _dots(found, plot), _front(found, plot), _winner(found, plot))
    return svg_element(_title(found), [line for layer in layers for line in layer])


class _Plot:
    """The place of hours and dollars in the picture."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._across: LogAxis = axis_of([point.hours for point in points])
        self._up: LogAxis = axis_of([point.usd for point in points])

    def x(self, hours: float) -> float:
        return LEFT + PLOT_WIDTH * self._across.fraction(hours)

    def y(self, usd: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - self._up.fraction(usd))

    def place(self, point: Point) -> str:
        return f"{self.x(point.hours):.1f} {self.y(point.usd):.1f}"

    def grid(self) -> Iterator[str]:
        """Lines with their hours and dollars; a text only where there is room."""
        bottom, free = TOP + PLOT_HEIGHT, 0.0
        for hours in hour_ticks(self._across):
            x, text = self.x(hours), tick_text(hours)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" class="grid"/>'
            if x - LETTER_WIDTH * len(text) / 2 >= free:
                yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" class="tick">{text}</text>'
                free = x + LETTER_WIDTH * (len(text) / 2 + 1)
        for usd in usd_ticks(self._up):
            y = self.y(usd)
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="tick">{usd_tick_text(usd)}</text>'


def _legend(found: Recommendation) -> Iterator[str]:
    x = LEFT
    shown = {*SEARCHED_METHODS, *(point.recipe.method for point in found.scored)}
    names = [*((method.value, _style(method)) for method in Method if method in shown), ("first plan", WINNER)]
    for name, style in names:
        yield f'<circle cx="{x + 4}" cy="{TOP - 18}" r="4" class="{style}"/>'
        yield f'<text x="{x + 12}" y="{TOP - 14}">{name}</text>'
        x += 24 + LETTER_WIDTH * len(name)
    yield f'<text x="{x}" y="{TOP - 14}">line: nothing is both faster and cheaper</text>'


def _dots(found: Recommendation, plot: _Plot) -> Iterator[str]:
    """One dot for all setups of a method that share a pixel, named by the first of them."""
    seen: set[tuple[int, int, Method]] = set()
    for point in found.scored:
        x, y, method = plot.x(point.hours), plot.y(point.usd), point.recipe.method
        place = (round(x), round(y), method)
        if place not in seen:
            seen.add(place)
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" class="dot {_style(method)}">'
                f"<title>{markup(_about(point))}</title></circle>"
            )


def _front(found: Recommendation, plot: _Plot) -> Iterator[str]:
    """Steps from the fastest to the cheapest: until the next one is reached, nothing costs less than the last."""
    steps = "M" + plot.place(found.pareto[0])
    for point in found.pareto[1:]:
        steps += f" H{plot.x(point.hours):.1f} V{plot.y(point.usd):.1f}"
    yield f'<path d="{steps}" class="front"/>'
    for point in found.pareto:
        yield _ring(plot, (point.hours, point.usd), 5, f"front-dot {_style(point.recipe.method)}", _about(point))


def _winner(found: Recommendation, plot: _Plot) -> Iterator[str]:
    plan = found.plans[0]
    if plan.hours is not None and plan.usd is not None:
        about = f"first plan: {money_line(plan, found.as_of)}"
        yield _ring(plot, (plan.hours, plan.usd), 7, WINNER, about)


def _ring(plot: _Plot, at: tuple[float, float], radius: int, style: str, about: str) -> str:
    return (
        f'<circle cx="{plot.x(at[0]):.1f}" cy="{plot.y(at[1]):.1f}" r="{radius}" '
        f'class="{style}"><title>{markup(about)}</title></circle>'
    )


def _style(method: Method) -> str:
    return f"method-{method.value}"


def _about(point: Point) -> str:
    time, offer = duration_text(point.hours * SECONDS_PER_HOUR), point.offer
    where = f", {offer.provider}" if offer is not None else ""
    return f"{machine_label(point.cluster, point.recipe.method)}{where}: {time}, {usd_text(point.usd)}"
