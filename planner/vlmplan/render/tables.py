"""Tables for the terminal: ruled and coloured for a person, plain aligned text for a pipe.

Rich folds and cuts cells at 80 columns where it finds no terminal, so piped text is made here.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text. ``number_columns`` are aligned to the right."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    number_columns: frozenset[str] = frozenset()


def shows_colour() -> bool:
    """Whether standard output is a terminal and its user has not refused colour (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def can_show(text: str) -> bool:
    """Whether standard output has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def print_table(table: Table) -> None:
    """Print ``table`` to standard output in the form that suits it."""
    if sys.stdout.isatty() and _width_needed(table) <= shutil.get_terminal_size().columns:
        _print_ruled(table)
    else:
        for line in plain_lines(table):
            click.echo(line)


def plain_lines(table: Table) -> list[str]:
    """One line for the titles and one for each row, columns two blanks apart, nothing cut."""
    lines = [table.titles, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.titles))]
    return [
        "  ".join(
            cell.rjust(width) if title in table.number_columns else cell.ljust(width)
            for title, cell, width in zip(table.titles, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


def _least_widths(table: Table) -> list[int]:
    """Columns a table can be squeezed to: titles and texts may fold, a number never."""
    return [
        max(
            max(map(len, title.split()), default=0),
            max(
                (len(row[i]) if title in table.number_columns else min(len(row[i]), 12) for row in table.rows),
                default=0,
            ),
        )
        for i, title in enumerate(table.titles)
    ]


def _width_needed(table: Table) -> int:
    """The least width of the ruled table: two blanks of padding and one of rule for each column."""
    return sum(_least_widths(table)) + 3 * len(table.titles) + 1


def _print_ruled(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    ruled = RichTable(box=box.SIMPLE_HEAD)
    for title, width in zip(table.titles, _least_widths(table), strict=True):
        justify = "right" if title in table.number_columns else "left"
        ruled.add_column(title, justify=justify, min_width=width, overflow="fold")
    for row in table.rows:
        # Text, not markup: names such as "1x T4 [spot only]" carry brackets.
        ruled.add_row(*(Text(cell) for cell in row))
    Console().print(ruled)
