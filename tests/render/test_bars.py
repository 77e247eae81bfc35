"""Bars: as many cells as there are bytes, whatever they are cut into, and a mark where the limit is."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.engines.components import COMPONENT_NAMES
from vlmplan.render.bars import COLOURS, LETTERS, bar, legend, segments

PARTS = st.dictionaries(st.sampled_from(list(LETTERS)), st.integers(0, 10**12), max_size=7)
CELL = st.integers(10**9, 10**12)


def rounded(num_bytes: int, cell: int) -> int:
    return int(num_bytes / cell + 0.5)


def test_every_component_has_a_letter_and_a_colour_of_its_own():
    names = list(COMPONENT_NAMES)
    assert list(LETTERS) == list(COLOURS) == names
    assert len(set(LETTERS.values())) == len(set(COLOURS.values())) == len(names)


@given(parts=PARTS, cell=CELL)
def test_segments_add_up_to_the_bytes_of_all_parts(parts: dict[str, int], cell: int):
    assert sum(count for _, count in segments(parts, cell)) == rounded(sum(parts.values()), cell)


def test_less_than_half_a_cell_is_not_drawn():
    assert segments({"weights": 4}, 10) == []
    assert segments({"weights": 5}, 10) == [("weights", 1)]


@given(parts=PARTS, cell=CELL)
def test_no_segment_is_further_than_a_cell_from_its_bytes(parts: dict[str, int], cell: int):
    counts = dict.fromkeys(parts, 0) | dict(segments(parts, cell))
    assert all(abs(counts[name] * cell - num_bytes) <= cell * 1.001 for name, num_bytes in parts.items())


@given(parts=PARTS, cell=CELL)
def test_segments_come_in_the_order_of_the_parts_and_none_is_empty(parts: dict[str, int], cell: int):
    found = segments(parts, cell)
    assert [name for name, _ in found] == [name for name in parts if name in dict(found)]
    assert all(count > 0 for _, count in found)


@given(parts=PARTS, cell=CELL, limit=st.integers(0, 5 * 10**12))
def test_piped_bar_has_a_letter_a_cell_and_one_mark_at_the_limit(parts: dict[str, int], cell: int, limit: int):
    text = bar(parts, limit_bytes=limit, bytes_per_cell=cell)
    assert text.count("|") == 1
    assert text.index("|") == rounded(limit, cell)
    used = "".join(LETTERS[name] * count for name, count in segments(parts, cell))
    assert text.replace("|", "").rstrip(".") == used


@given(parts=PARTS, cell=CELL, limit=st.integers(0, 5 * 10**12))
def test_bar_ends_at_the_limit_or_where_the_bytes_do(parts: dict[str, int], cell: int, limit: int):
    length = max(rounded(limit, cell), rounded(sum(parts.values()), cell))
    assert len(bar(parts, limit_bytes=limit, bytes_per_cell=cell)) == length + 1


def test_terminal_shows_the_same_cells_in_colour(monkeypatch: pytest.MonkeyPatch):
    parts = {"weights": 30, "gradients": 20}
    plain = bar(parts, limit_bytes=40, bytes_per_cell=10)
    assert plain == "WWWG|G"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    coloured = bar(parts, limit_bytes=40, bytes_per_cell=10)
    assert "\x1b[34m███" in coloured
    assert len(re.sub(r"\x1b\[\d+m", "", coloured)) == len(plain)


@given(st.lists(st.sampled_from(list(LETTERS)), unique=True), st.integers(25, 120))
def test_legend_names_every_component_once_in_lines_that_are_not_too_long(names: list[str], width: int):
    lines = legend(names, width).split("\n")
    assert all(len(line) <= width for line in lines)
    entries = [entry for line in lines for entry in re.split(r"  +", line) if entry]
    assert entries == [f"{LETTERS[name]} {name.replace('_', ' ')}" for name in names]


def test_a_legend_is_as_wide_as_there_is_room():
    whole = "W weights  G gradients"
    assert legend(["weights", "gradients"], len(whole)) == whole
    assert legend(["weights", "gradients"], len(whole) - 1) == "W weights\nG gradients"
