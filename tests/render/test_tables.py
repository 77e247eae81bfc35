"""Tables: whatever the width, no value is cut and no number is broken."""

import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlmplan.render.tables import Table, plain_lines, print_table

WORD = st.text(alphabet="abcdefgh0123456789-", min_size=1, max_size=30)
NUMBER = st.integers(0, 10**15).map(str)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    titles = draw(st.lists(WORD, min_size=1, max_size=6, unique=True))
    numbers = frozenset(title for title in titles if draw(st.booleans()))
    rows = draw(
        st.lists(st.tuples(*(NUMBER if title in numbers else WORD for title in titles)), min_size=1, max_size=4)
    )
    return Table(titles=titles, rows=rows, number_columns=numbers)


@given(tables())
def test_plain_table_has_a_line_for_each_row_with_all_of_its_cells(table: Table):
    lines = plain_lines(table)
    assert len(lines) == 1 + len(table.rows)
    assert [line.split() for line in lines] == [list(row) for row in (table.titles, *table.rows)]


@given(tables())
def test_columns_of_a_plain_table_stand_below_each_other(table: Table):
    lines = plain_lines(table)
    start = 0
    for i, title in enumerate(table.titles):
        cells = [row[i] for row in (table.titles, *table.rows)]
        width = max(map(len, cells))
        for line, cell in zip(lines, cells, strict=True):
            place = line[start : start + width].ljust(width)
            assert place == (cell.rjust(width) if title in table.number_columns else cell.ljust(width))
        start += width + 2


def printed(table: Table, capsys: pytest.CaptureFixture[str]) -> str:
    print_table(table)
    return capsys.readouterr().out


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(table=tables(), width=st.integers(20, 200))
def test_piped_table_does_not_depend_on_the_width(table: Table, width: int, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert printed(table, capsys).splitlines() == plain_lines(table)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(table=tables(), width=st.integers(20, 200))
def test_terminal_of_any_width_shows_every_number_whole(table: Table, width: int, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    words = printed(table, capsys).split()
    for i, title in enumerate(table.titles):
        if title in table.number_columns:
            assert all(row[i] in words for row in table.rows)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(table=tables(), width=st.integers(20, 200))
def test_terminal_of_any_width_loses_no_character(table: Table, width: int, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    shown = re.sub(r"\x1b\[[\d;]*m", "", printed(table, capsys))
    cells = "".join(cell for row in (table.titles, *table.rows) for cell in row)
    assert sorted(re.sub(r"[\s─]", "", shown)) == sorted(cells)
