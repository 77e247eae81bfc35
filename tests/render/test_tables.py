"""Tables: a row is one line within the width, no number is broken, what is not shown is said."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.render.lines import cell_width
from vlmplan.render.tables import Table, fitted_lines, plain_lines, print_table

WORD = st.text(alphabet="abcdefgh0123456789-", min_size=1, max_size=30)
NUMBER = st.integers(0, 10**15).map(str)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    titles = draw(st.lists(WORD, min_size=1, max_size=6, unique=True))
    numbers = frozenset(title for title in titles if draw(st.booleans()))
    rows = draw(
        st.lists(st.tuples(*(NUMBER if title in numbers else WORD for title in titles)), min_size=1, max_size=4)
    )
    least_first = draw(st.permutations(titles))[: draw(st.integers(0, len(titles) - 1))]
    texts = [title for title in titles if title not in numbers]
    cut_columns = frozenset(draw(st.lists(st.sampled_from(texts)))) if texts else frozenset()
    return Table(titles=titles, rows=rows, number_columns=numbers, least_first=least_first, cut_columns=cut_columns)


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


def test_a_pipe_has_every_column_whole(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(titles=("a", "b"), rows=[("x" * 90, "y" * 90)], least_first=("b",), cut_columns=frozenset("a"))
    assert printed(table, capsys).splitlines() == plain_lines(table)


@given(tables(), st.integers(40, 200))
def test_no_line_is_wider_than_the_terminal(table: Table, width: int):
    assert all(cell_width(line) <= width for line in fitted_lines(table, width))


@given(tables())
def test_a_table_that_has_room_is_the_plain_one(table: Table):
    lines = plain_lines(table)
    assert fitted_lines(table, max(map(len, lines))) == lines


@given(tables(), st.integers(40, 200))
def test_a_number_is_shown_whole_or_its_column_is_said_to_be_left_out(table: Table, width: int):
    lines = fitted_lines(table, width)
    words = " ".join(lines).split()
    note = " ".join(lines).rpartition("(")[2]
    for i, title in enumerate(table.titles):
        if title in table.number_columns and title not in re.split(r"[,;)]? +|[,;)]", note):
            assert all(row[i] in words for row in table.rows)


@given(tables(), st.integers(40, 200))
def test_each_row_is_one_line_where_the_columns_that_must_be_there_have_room(table: Table, width: int):
    needed = [title for title in table.titles if title not in table.least_first]
    cells = [[row[table.titles.index(title)] for title in needed] for row in (table.titles, *table.rows)]
    if sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) - 2 <= width:
        lines = fitted_lines(table, width)
        first, rows, note = lines[0], lines[1 : 1 + len(table.rows)], lines[1 + len(table.rows) :]
        assert len(rows) == len(table.rows)
        assert set(needed) <= set(first.split())
        assert not note or note[0].startswith(f"({width} columns: ")


ROW = ("a100-sxm4-80gb", "genesis-cloud-and-a-long-name", "123,456.78", "ZeRO-3, optimizer on cpu", "123456")
PLANS = Table(
    titles=("GPU", "offer", "usd", "engine", "steps"),
    rows=[ROW, ROW],
    number_columns=frozenset(("usd", "steps")),
    least_first=("steps", "engine"),
    cut_columns=frozenset(("offer", "engine")),
)


def test_texts_are_cut_before_a_column_goes_and_both_are_said():
    titles, first, second, note = fitted_lines(PLANS, 80)
    assert titles.split() == list(PLANS.titles)
    assert first == second
    assert "ZeRO-3, optimizer on" in first
    assert "genesis-cloud" in first
    assert note == "(80 columns: offer, engine cut short)"
    assert fitted_lines(PLANS, 60)[-1] == "(60 columns: without engine; offer cut short)"


def test_a_column_that_is_narrow_stays_where_a_wide_one_had_to_go():
    table = Table(titles=("name", "narrow", "wide"), rows=[("n" * 20, "1", "w" * 40)], least_first=("narrow", "wide"))
    assert fitted_lines(table, 50)[0].split() == ["name", "narrow"]


def test_what_no_terminal_has_room_for_becomes_blocks():
    table = Table(titles=("name", "number"), rows=[("n" * 30, "1" * 30)] * 2, number_columns=frozenset(("number",)))
    assert fitted_lines(table, 50) == [f"name    {'n' * 30}", f"number  {'1' * 30}", "", *fitted_lines(table, 50)[:2]]


def test_a_terminal_with_room_gets_rules_and_one_without_none(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for columns, is_ruled in ((200, True), (80, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = printed(PLANS, capsys)
        assert ("─" in shown) is is_ruled
        assert all(cell_width(line) <= columns for line in shown.splitlines())
