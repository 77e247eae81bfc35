"""Lines: nothing is lost when they are folded, and none is wider than the terminal."""

import shlex
import sys

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.render.lines import LEAST_COLUMNS, cell_width, cut, folded, folded_command, line_width, say, say_command

WORD = st.text(alphabet="abcü模-/;,.:", min_size=1, max_size=50)
TEXT = st.lists(WORD, min_size=1, max_size=30).map(" ".join)


@given(TEXT, st.integers(0, 6), st.integers(LEAST_COLUMNS, 200))
def test_folded_lines_are_no_wider_than_asked_and_lose_nothing(text: str, indent: int, width: int):
    text = " " * indent + text
    lines = folded(text, width)
    assert all(cell_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert (len(lines) == 1) == (cell_width(text) <= width)


@given(TEXT, st.integers(LEAST_COLUMNS, 200))
def test_lines_after_the_first_stand_to_the_right_of_it(text: str, width: int):
    first, *later = folded(f"  {text}", width)
    assert first.startswith("  ")
    assert not first.startswith("   ")
    assert all(line.startswith("    ") for line in later)


def test_a_line_ends_behind_a_clause_where_that_leaves_it_full_enough():
    assert folded("aaaa aaaa aaaa; bbbb bbbb", 24) == ["aaaa aaaa aaaa;", "  bbbb bbbb"]
    assert folded("a; bbbb bbbb bbbb bbbb cccc", 24) == ["a; bbbb bbbb bbbb bbbb", "  cccc"]


def test_colours_take_no_columns():
    text = click.style("fits", fg="green", bold=True) + ": " + "x" * 34
    assert cell_width(text) == 40
    assert folded(text, 40) == [text]


@given(st.lists(st.text(alphabet="ab-$' \"\\", max_size=30), min_size=1, max_size=12), st.integers(40, 120))
def test_a_folded_command_is_the_same_command_to_a_shell(words: list[str], width: int):
    command = shlex.join(words)
    if "\n" not in command:
        assert shlex.split("\n".join(folded_command(command, width)).replace("\\\n", "")) == words


@given(WORD, st.integers(1, 60))
def test_a_cut_text_keeps_its_beginning_within_the_width(text: str, width: int):
    short = cut(text, width)
    assert cell_width(short) <= width
    assert short == text or short.rstrip(".") == text[: len(short.rstrip("."))] or set(short) <= {"."}


@pytest.mark.parametrize(
    ("columns", "is_terminal", "width"),
    [(None, False, None), ("100", False, 100), ("12", True, 40), ("0", False, None), ("9" * 5000, False, 1000)],
)
def test_columns_of_the_environment_decide_and_a_pipe_without_them_has_no_width(
    columns: str | None, is_terminal: bool, width: int | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    assert line_width() == width


def test_sentences_are_whole_in_a_pipe_and_folded_in_a_terminal(monkeypatch, capsys):
    sentence = "word " * 30 + "end"
    monkeypatch.delenv("COLUMNS", raising=False)
    say(sentence)
    assert capsys.readouterr().out == sentence + "\n"
    monkeypatch.setenv("COLUMNS", "60")
    say(sentence)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 60 for line in lines)


def test_a_command_is_on_the_line_of_its_words_where_there_is_room(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    say_command("to fit:", "vlmplan estimate --model a")
    assert capsys.readouterr().out == "to fit: vlmplan estimate --model a\n"
    say_command("to fit:", "vlmplan estimate --model a --gpu rtx-4090:2 --micro-batch 1 --zero-stage 3")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "to fit:"
    assert all(line.endswith(" \\") for line in shown[1:-1])
    assert all(len(line) <= 60 for line in shown)
