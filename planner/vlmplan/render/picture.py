"""What pictures share: the frame of an SVG, its colours, round ticks; and tables.

No scripts, no addresses that a browser would fetch; text is escaped here, so callers give it as it is.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from math import floor, log10
from textwrap import wrap

from vlmplan.plain_text import printable
from vlmplan.web.files import STATIC

WIDTH, HEIGHT = 840, 440
"""About as wide as a column of text, so that letters keep their size where the picture is shown in one."""
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 76, 40
"""Margins around the plot."""
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
TITLE_COLUMNS = 110
"""Characters of a line of the title; what is longer goes on in the line below."""
ROOT = re.compile(r":root \{(.*?)\n\}", re.DOTALL)
VARIABLE = re.compile(r"(--[\w-]+): ([^;]+);")
RULE = re.compile(r"^(?:svg|\.)[^{}]*\{[^}]*\}$", re.MULTILINE)


def markup(text: str) -> str:
    """``text`` as it may stand in an element or an attribute of XML and HTML."""
    return escape(printable(text))


@cache
def _styles() -> str:
    """The rules of charts with the light colours in them: what shows an SVG file need not know variables."""
    text = (STATIC / "charts.css").read_text(encoding="utf-8")
    (light,) = ROOT.findall(text)[:1]
    colours = dict(VARIABLE.findall(light))
    rules = "\n".join(RULE.findall(text))
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], rules)


def svg_file(svg: str) -> str:
    """A whole file of an ``svg`` element, in light colours wherever it is shown."""
    styled = svg.replace("</title>", f"</title>\n<style>{_styles()}</style>", 1)  # the title has to be the first child
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{styled}\n'


def svg_element(title: str, lines: Iterable[str]) -> str:
    """The element with its title above the plot; ``lines`` are elements inside. Its colours are those of charts.css."""
    inside = "\n".join(lines)
    rows = enumerate(wrap(title, TITLE_COLUMNS))
    shown = "\n".join(
        f'<text x="{LEFT}" y="{20 + 16 * row}" class="picture-title">{markup(text)}</text>' for row, text in rows
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" class="picture">\n<title>{markup(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" class="paper"/>\n{shown}\n{inside}\n</svg>'
    )


def round_ticks(end: float, count: int) -> list[float]:
    """About ``count`` round steps from 0 to ``end``: 1, 2 or 5 times a power of ten.

    >>> round_ticks(23.5, 5), round_ticks(0.9, 3)
    ([0.0, 5.0, 10.0, 15.0, 20.0], [0.0, 0.5])
    """
    rough = end / count
    power = 10.0 ** floor(log10(rough))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= rough)
    return [place * step for place in range(int(end / step * 1.0001) + 1)]


def paragraph(text: str) -> str:
    return f"<p>{markup(text)}</p>"


def html_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{markup(title)}</th>" for title in titles)
    body = "\n".join("<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"
