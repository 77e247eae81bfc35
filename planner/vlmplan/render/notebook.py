"""HTML that a notebook shows for an answer: a fragment that brings its style with it and takes the colours of the page
around it, light or dark.

No scripts, no addresses that a browser would fetch; text is escaped here, so callers give it as it is.
"""

from collections.abc import Iterable, Mapping, Sequence

import click

from vlmplan.render.picture import html_table, markup, paragraph
from vlmplan.render.tables import Table

CLASS = "vlmplan"
LINE = "rgba(128,128,128,.35)"
"""Seen on white and on black."""
STYLE = (
    f".{CLASS}{{font:13px/1.5 system-ui,sans-serif;max-width:72em}}"
    f".{CLASS} h4{{margin:.4em 0;font-size:1.1em}}.{CLASS} p{{margin:.2em 0}}"
    f".{CLASS} table{{border-collapse:collapse;margin:.6em 0;background:none}}"
    f".{CLASS} tr{{background:none}}"
    f".{CLASS} td,.{CLASS} th{{padding:2px 10px;text-align:right;border:0;border-bottom:1px solid {LINE}}}"
    f".{CLASS} td:first-child,.{CLASS} th:first-child{{text-align:left}}"
    f".{CLASS} pre{{margin:.2em 0 .4em;white-space:pre-wrap;background:none;color:inherit}}"
    f".{CLASS} .badge{{color:#fff;border-radius:3px;padding:1px 6px}}"
    f".{CLASS} .bar{{display:flex;position:relative;width:24em;height:11px;border-bottom:1px solid {LINE}}}"
    f".{CLASS} .limit{{position:absolute;top:-2px;bottom:-2px;border-left:2px solid currentColor}}"
    f".{CLASS} .key{{display:inline-block;width:10px;height:10px;margin:0 4px 0 10px}}"
)
BADGES: Mapping[str, str] = {"fits": "#2e7d4f", "tight": "#9a6700", "does_not_fit": "#b3261e"}
"""Behind white letters, by verdict."""
FILLS: Mapping[str, str] = {
    "weights": "#4878a8",
    "gradients": "#c9a227",
    "optimizer_states": "#5a9a5a",
    "activations": "#b0552a",
    "logits": "#9467bd",
    "communication_buffers": "#3aa6a6",
    "temporaries": "#8c8c8c",
    "inference_engine": "#2f4b7c",
}


def fragment(parts: Iterable[str]) -> str:
    """The whole, of elements."""
    inside = "\n".join(parts)
    return f'<div class="{CLASS}"><style>{STYLE}</style>\n{inside}\n</div>'


def title(text: str) -> str:
    return f"<h4>{markup(click.unstyle(text))}</h4>"


def sentences(texts: Iterable[str]) -> list[str]:
    """A paragraph for each; those that are empty are left out."""
    return [paragraph(click.unstyle(text).strip()) for text in texts if text.strip()]


def preformatted(text: str) -> str:
    """Lines as they stand: a command to copy, a table of letters."""
    lines = "\n".join(map(markup, text.strip("\n").splitlines()))
    return f"<pre>{lines}</pre>"


def verdict(kind: str, text: str) -> str:
    """The sentence of a verdict, whose word ends at its first colon, with the word on its colour."""
    word, _, rest = click.unstyle(text).partition(":")
    return f'<p><span class="badge" style="background:{BADGES[kind]}">{markup(word)}</span>{markup(rest)}</p>'


def table(shown: Table) -> str:
    return html_table(shown.titles, shown.rows)


def bars(titles: Sequence[str], rows: Iterable[tuple[Sequence[str], Mapping[str, int]]], *, limit_bytes: int) -> str:
    """A table whose rows end with a bar of components on one scale, with a line where ``limit_bytes`` are."""
    rows = list(rows)
    whole = max(limit_bytes, *(sum(parts.values()) for _, parts in rows))
    head = "".join(f"<th>{markup(text)}</th>" for text in titles)
    body = "\n".join(
        "<tr>"
        + "".join(f"<td>{markup(cell)}</td>" for cell in cells)
        + f"<td>{_bar(parts, limit_bytes, whole)}</td></tr>"
        for cells, parts in rows
    )
    names = [name for name in FILLS if any(parts.get(name) for _, parts in rows)]
    keys = "".join(f'<span class="key" style="background:{FILLS[name]}"></span>{_words(name)}' for name in names)
    return f"<table><tr>{head}</tr>\n{body}</table>\n<p>{keys}</p>"


def _bar(parts: Mapping[str, int], limit_bytes: int, whole: int) -> str:
    inside = "".join(
        f'<span title="{_words(name)}" style="background:{FILLS[name]};width:{100 * num_bytes / whole:.2f}%"></span>'
        for name, num_bytes in parts.items()
        if num_bytes
    )
    return f'<div class="bar">{inside}<span class="limit" style="left:{100 * limit_bytes / whole:.2f}%"></span></div>'


def _words(name: str) -> str:
    return name.replace("_", " ")
