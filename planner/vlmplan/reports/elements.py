"""Elements of a report. Whatever text goes in is escaped here, without control characters and without folders of the
machine, so callers give it as it is.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from vlmplan.render.picture import markup
from vlmplan.render.tables import Table

FOLDERS = re.compile(r"(?<![\w./:~+=-])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\"<>]+[/\\])+(?=[^\s/\\])")
"""The folders of an absolute path, up to its last part. An address (``https://``), ``tokens/s`` and a
slash of base64, which follows a letter, a digit, ``+`` or another slash, are none."""


def without_folders(text: str) -> str:
    """``text`` with the last part alone of every absolute path in it.

    >>> without_folders("of /home/me/models/x on https://a.b/c/d, 3 GiB/s; meta/llama")
    'of x on https://a.b/c/d, 3 GiB/s; meta/llama'
    """
    return FOLDERS.sub("", text.replace(f"{Path.home()}/", "~/"))


def cleaned(value: Any) -> Any:
    """JSON with ``without_folders`` of every text."""
    if isinstance(value, Mapping):
        return {str(key): cleaned(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [cleaned(item) for item in cast(Sequence[Any], value)]
    return without_folders(value) if isinstance(value, str) else value


def escaped(text: str) -> str:
    """``text`` as it may stand in an element or an attribute."""
    return markup(without_folders(click.unstyle(text)))


def section(identifier: str, title: str, *inside: str) -> str:
    """A part of the report under a heading."""
    parts = "\n".join(inside)
    return (
        f'<section id="{identifier}-section" aria-labelledby="{identifier}-title">\n'
        f'<h2 id="{identifier}-title">{escaped(title)}</h2>\n{parts}\n</section>'
    )


def chart(identifier: str, picture: str) -> str:
    """A place for what a script draws as ``identifier``; until then, and without scripts, there is ``picture``."""
    return f'<div id="{identifier}">\n{picture}\n</div>'


def paragraphs(texts: Iterable[str]) -> str:
    return "\n".join(f"<p>{escaped(text).strip()}</p>" for text in texts if text.strip())


def lines(texts: Iterable[str]) -> str:
    """Sentences as a list."""
    items = "".join(f"<li>{escaped(text).strip()}</li>\n" for text in texts if text.strip())
    return f'<ul class="lines">\n{items}</ul>' if items else ""


def verdict(kind: str, text: str) -> str:
    """The sentence of a verdict, whose word ends at its first colon."""
    word, _, rest = click.unstyle(text).partition(":")
    return f'<p class="verdict"><strong class="badge {kind}">{escaped(word)}</strong> {escaped(rest.strip())}</p>'


def preformatted(text: str, label: str) -> str:
    """Lines as they stand: a command to copy, a table of letters."""
    inside = "\n".join(map(escaped, text.strip("\n").splitlines()))
    return f'<pre tabindex="0" role="region" aria-label="{escaped(label)}">{inside}</pre>'


def table(shown: Table, caption: str, *, identifier: str = "") -> str:
    """A table for people and for readers of screens; ``identifier`` is for scripts.

    Above a column without a title is no heading, which would be read as an empty one.
    """
    styles = ["" if title in shown.number_columns else ' class="text"' for title in shown.titles]
    body = "\n".join(_row(row, styles) for row in shown.rows)
    head = "".join(
        f'<th scope="col"{style}>{escaped(title)}</th>' if title else f"<td{style}></td>"
        for title, style in zip(shown.titles, styles, strict=True)
    )
    named = f' id="{identifier}"' if identifier else ""
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="table: {escaped(caption)}"><table{named}>'
        f'<caption class="hidden-title">{escaped(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(cells: Sequence[str], styles: Sequence[str]) -> str:
    first, *rest = cells
    inside = "".join(f"<td{style}>{escaped(cell)}</td>" for cell, style in zip(rest, styles[1:], strict=True))
    return f'<tr><th scope="row">{escaped(first)}</th>{inside}</tr>'


def folded(title: str, *inside: str) -> str:
    """What is shown when somebody asks."""
    parts = "\n".join(inside)
    return f"<details>\n<summary>{escaped(title)}</summary>\n{parts}\n</details>"
