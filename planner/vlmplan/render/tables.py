"""Tables for the terminal: ruled and coloured where there is room, plain aligned text for a pipe, never folded.

A row is one line. Where the terminal has no room for all columns, those of ``least_first`` go, the first of them
first, texts of ``cut_columns`` are cut, and a line below says what is not shown. What is narrower than the rest still
needs gets a block of lines for each row: a number is never cut.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import click

from vlmplan.plain_text import printable_line, refuses_colour
from vlmplan.render.lines import cell_width, cut, folded, line_width

GAP = "  "
LEAST_CUT = 16
"""Columns that a text keeps when it is cut. A choice."""
ELLIPSES = "…", "..."
"""The second for terminals that have only ASCII."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text. ``number_columns`` are aligned to the right.

    ``least_first``: titles of the columns that a narrow terminal can do without, the least important first.
    ``cut_columns``: those whose texts may lose their ends there.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    number_columns: frozenset[str] = frozenset()
    least_first: Sequence[str] = ()
    cut_columns: frozenset[str] = frozenset()


def shows_colour() -> bool:
    """Whether standard output is a terminal that takes colour."""
    return sys.stdout.isatty() and not refuses_colour()


def can_show(text: str) -> bool:
    """Whether standard output has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def print_table(table: Table) -> None:
    """Print ``table`` to standard output in the form that suits its width."""
    table = replace(table, rows=[[printable_line(cell) for cell in row] for row in table.rows])
    width = line_width()
    if sys.stdout.isatty() and width is not None and _ruled_width(table) <= width:
        _print_ruled(table, width)
        return
    for line in plain_lines(table) if width is None else fitted_lines(table, width):
        click.echo(line)


def plain_lines(table: Table) -> list[str]:
    """One line for the titles and one for each row, columns two blanks apart, nothing cut."""
    return _aligned(table, _natural_widths(table))


def fitted_lines(table: Table, width: int) -> list[str]:
    """The lines of a table in ``width`` columns, and a line about what had to be left out or cut."""
    hidden = _hidden(table, width)
    if hidden is None:
        return list(_blocks(table, width))
    shown = _without(table, hidden)
    widths = _cut_widths(shown, width)
    left_out = [title for title in table.titles if title in hidden]
    are_cut = [
        title for title, one, natural in zip(shown.titles, widths, _natural_widths(shown), strict=True) if one < natural
    ]
    told = [f"without {', '.join(left_out)}"] if left_out else []
    told += [f"{', '.join(are_cut)} cut short"] if are_cut else []
    note = folded(f"({width} columns: {'; '.join(told)})", width) if told else []
    return _aligned(shown, widths) + note


def _aligned(table: Table, widths: Sequence[int]) -> list[str]:
    ellipsis = next(one for one in ELLIPSES if can_show(one))
    return [
        GAP.join(
            _padded(cut(cell, width, ellipsis), width, is_number=title in table.number_columns)
            for title, cell, width in zip(table.titles, line, widths, strict=True)
        ).rstrip()
        for line in (table.titles, *table.rows)
    ]


def _padded(cell: str, width: int, *, is_number: bool) -> str:
    blanks = " " * (width - cell_width(cell))
    return blanks + cell if is_number else cell + blanks


def _natural_widths(table: Table) -> list[int]:
    lines = [table.titles, *table.rows]
    return [max(cell_width(line[i]) for line in lines) for i in range(len(table.titles))]


def _least_widths(table: Table) -> list[int]:
    return [
        min(natural, max(LEAST_CUT, cell_width(title))) if title in table.cut_columns else natural
        for title, natural in zip(table.titles, _natural_widths(table), strict=True)
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _hidden(table: Table, width: int) -> frozenset[str] | None:
    """The columns to leave out so that the others fit; None where no choice does."""

    def fits(hidden: frozenset[str]) -> bool:
        return _total(_least_widths(_without(table, hidden))) <= width

    for count in range(len(table.least_first) + 1):
        hidden = frozenset(table.least_first[:count])
        if fits(hidden):
            for title in reversed(table.least_first[:count]):  # one that is narrow may have room after all
                hidden = hidden - {title} if fits(hidden - {title}) else hidden
            return hidden
    return None


def _without(table: Table, hidden: frozenset[str]) -> Table:
    if not hidden:
        return table
    places = [place for place, title in enumerate(table.titles) if title not in hidden]
    return Table(
        titles=[table.titles[place] for place in places],
        rows=[[row[place] for place in places] for row in table.rows],
        number_columns=table.number_columns,
        cut_columns=table.cut_columns,
    )


def _cut_widths(table: Table, width: int) -> list[int]:
    """Natural widths, of which the widest texts give what is too much."""
    widths, least = _natural_widths(table), _least_widths(table)
    while _total(widths) > width:
        _, place = max((widths[i], i) for i in range(len(widths)) if widths[i] > least[i])
        widths[place] -= 1
    return widths


def _blocks(table: Table, width: int) -> Iterator[str]:
    """Each row as a line for each cell."""
    longest = max(map(cell_width, table.titles))
    for number, row in enumerate(table.rows):
        if number:
            yield ""
        for title, cell in zip(table.titles, row, strict=True):
            if cell:
                yield from folded(f"{_padded(title, longest, is_number=False)}{GAP}{cell}".strip(), width)


def _ruled_width(table: Table) -> int:
    """Columns of the ruled table: two blanks of padding and one of rule for each column."""
    return sum(_natural_widths(table)) + 3 * len(table.titles) + 1


def _print_ruled(table: Table, width: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    ruled = RichTable(box=box.SIMPLE_HEAD)
    for title, least in zip(table.titles, _natural_widths(table), strict=True):
        ruled.add_column(title, justify="right" if title in table.number_columns else "left", min_width=least)
    for row in table.rows:
        # Text, not markup: names such as "1x T4 [spot only]" carry brackets.
        ruled.add_row(*(Text(cell) for cell in row))
    Console(width=width).print(ruled)
