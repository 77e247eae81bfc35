"""What pictures share: the frame of an SVG and of an HTML page that brings everything with it, and tables in it.

No scripts, no addresses that a browser would fetch; text is escaped here, so callers give it as it is.
"""

from collections.abc import Iterable, Sequence
from html import escape
from textwrap import wrap

from vlmplan.plain_text import printable

WIDTH, HEIGHT = 840, 440
"""About as wide as a column of text, so that letters keep their size where the picture is shown in one."""
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 76, 40
"""Margins around the plot."""
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
TITLE_COLUMNS = 110
"""Characters of a line of the title; what is longer goes on in the line below."""
STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:1240px}table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:2px 12px;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}"
)


def markup(text: str) -> str:
    """``text`` as it may stand in an element or an attribute of XML and HTML."""
    return escape(printable(text))


def svg_file(svg: str) -> str:
    """A whole file of an ``svg`` element."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg}\n'


def svg_element(title: str, lines: Iterable[str]) -> str:
    """The element with its title above the plot, on white wherever it is shown; ``lines`` are elements inside."""
    inside = "\n".join(lines)
    rows = enumerate(wrap(title, TITLE_COLUMNS))
    shown = "\n".join(
        f'<text x="{LEFT}" y="{20 + 16 * row}" font-size="13">{markup(text)}</text>' for row, text in rows
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<title>{markup(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{shown}\n{inside}\n</svg>'
    )


def page(title: str, body: Iterable[str]) -> str:
    """A whole HTML page; ``body`` are elements under the title."""
    shown = markup(title)
    inside = "\n".join([f"<h1>{shown}</h1>", *body])
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{shown}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{inside}\n</body></html>\n"
    )


def paragraph(text: str) -> str:
    return f"<p>{markup(text)}</p>"


def html_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{markup(title)}</th>" for title in titles)
    body = "\n".join("<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}</table>"
