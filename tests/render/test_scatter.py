"""Cost against time in characters: every point has its place, the front over others, the winner over both."""

import re
from math import log10
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.render.scatter import (
    HEIGHT,
    MARGIN,
    MARKS,
    PLAIN_MARKS,
    LogAxis,
    axis_of,
    hour_ticks,
    scatter_lines,
    tick_text,
    usd_tick_text,
    usd_ticks,
)
from vlmplan.search.pareto import front

VALUES = st.floats(1e-5, 1e7)
POINTS = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30)


def drawn(points: list[tuple[float, float]], *, width: int = 80, marks: str = MARKS) -> list[str]:
    entries = [SimpleNamespace(hours=hours, usd=usd) for hours, usd in points]
    members = [entries[place] for place in front(points)]
    winner = min(points, key=lambda point: point[1])
    return scatter_lines(entries, members, winner, width=width, marks=marks)


def cells(lines: list[str]) -> list[str]:
    return [line[MARGIN:] for line in lines[:HEIGHT]]


# Axes


def test_equal_factors_are_equal_distances():
    axis = LogAxis(1.0, 1000.0)
    assert [axis.fraction(value) for value in (1.0, 10.0, 100.0, 1000.0)] == pytest.approx([0, 1 / 3, 2 / 3, 1])


@given(st.lists(st.floats(0, 1e7), min_size=1))
def test_an_axis_has_every_value_and_what_is_free_at_its_end(values: list[float]):
    axis = axis_of(values)
    assert 0 < axis.low < axis.high
    assert all(axis.low <= value <= axis.high for value in values if value)
    assert all(0 <= axis.fraction(value) <= 1 for value in values)
    assert axis.fraction(0.0) == 0


@given(VALUES, st.floats(1.3, 1e6))
def test_ticks_are_within_the_axis_and_rise(low: float, factor: float):
    axis = LogAxis(low, low * factor)
    for ticks in (usd_ticks(axis), hour_ticks(axis)):
        assert ticks == sorted(set(ticks))
        assert all(axis.low <= tick <= axis.high for tick in ticks)


@given(VALUES)
def test_a_decade_has_three_ticks_of_price(low: float):
    ticks = usd_ticks(LogAxis(low, 10 * low))
    assert len(ticks) in (3, 4)
    assert all(
        10 ** (log10(tick) % 1) == pytest.approx(1) or round(tick / 10 ** (log10(tick) // 1)) in (2, 5)
        for tick in ticks
    )


def test_texts_of_ticks_are_round_and_differ():
    axis = LogAxis(1 / 3600, 24 * 30)
    texts = [tick_text(tick) for tick in hour_ticks(axis)]
    assert {"1 s", "30 s", "1 min", "30 min", "1 h", "8 h", "1 d", "20 d"} <= set(texts)
    assert len(set(texts)) == len(texts)
    assert [usd_tick_text(usd) for usd in (0.01, 0.2, 1, 500, 20000)] == ["$0.010", "$0.20", "$1", "$500", "$20 k"]


# The plot


@given(POINTS, st.integers(40, 160))
def test_plot_keeps_its_width_and_height(points, width: int):
    lines = drawn(points, width=width)
    assert len(lines) == HEIGHT + 2
    assert all(len(line) <= width for line in lines)


@given(POINTS)
def test_every_kind_of_point_is_there_and_there_is_one_winner(points):
    text = "".join(cells(drawn(points)))
    assert text.count(MARKS[2]) == 1
    marked = sum(text.count(mark) for mark in MARKS)
    assert 1 <= marked <= len(points)


@given(POINTS)
def test_nothing_lies_below_and_left_of_a_member_of_the_front(points):
    rows = cells(drawn(points))
    marks = [(row, column, mark) for row, line in enumerate(rows) for column, mark in enumerate(line) if mark != " "]
    members = [(row, column) for row, column, mark in marks if mark != MARKS[0]]
    assert not [
        (row, column, member)
        for row, column, _ in marks
        for member in members
        if row > member[0] and column < member[1]
    ]


def test_cheaper_is_lower_and_slower_is_to_the_right():
    rows = cells(drawn([(1.0, 100.0), (10.0, 10.0), (100.0, 1.0)]))
    places = [(row, re.search(r"\S", line).start()) for row, line in enumerate(rows) if line.strip()]
    assert [row for row, _ in places] == sorted(row for row, _ in places)
    assert [column for _, column in places] == sorted(column for _, column in places)
    (first, middle, last) = places
    assert middle[0] - first[0] == last[0] - middle[0]
    assert middle[1] - first[1] == pytest.approx(last[1] - middle[1], abs=1)


def test_terminals_without_other_characters_get_ascii():
    lines = drawn([(1.0, 9.0), (2.0, 9.5), (3.0, 1.0)], marks=PLAIN_MARKS)
    assert all(line.isascii() for line in lines)
    assert "".join(cells(lines)).count("x") == 1


@given(POINTS, st.sampled_from((60, 80, 120, 200)))
def test_both_axes_have_two_labels_at_every_usual_width(points, width: int):
    lines = drawn(points, width=width)
    prices = [line[: MARGIN - 2].strip() for line in lines[:HEIGHT]]
    assert len([price for price in prices if price]) >= 2
    assert lines[-2].count("+") >= 1 + 2
    assert len(re.split(" {2,}", lines[-1].strip())) == lines[-2].count("+") - 1


def test_axes_are_labelled():
    lines = drawn([(1.0, 100.0), (10.0, 10.0), (100.0, 1.0)])
    assert "$100" in "".join(lines)
    assert "8 h" in lines[-1]
    assert set(lines[-2].strip()) == {"+", "-"}
