"""In a terminal the steps are a bar of one line; what a pipe or a log gets has no escape codes."""

import io
import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch_cases import script
from vlmplan.launch.start import follow
from vlmplan.plain_text import can_draw
from vlmplan.run.step_bar import StepBar
from vlmplan.run.training import parts_of_step_line, step_line

PARTS = ["loss 5.3561", "lr 9.61e-06", "90.85 samples/s", "4,656 tokens/s", "4.8 MiB of 4.9 MiB planned", "2.1 s left"]
LINES = [step_line(step, 3, PARTS) for step in (1, 2, 3)]


def shown(*chunks: str, width: int = 80) -> str:
    file = io.StringIO()
    bar = StepBar(file, width=width)
    for chunk in chunks:
        bar.feed(chunk)
    bar.close()
    return file.getvalue()


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_line_of_a_step_is_read_as_it_was_meant(step: int, num_steps: int):
    assert parts_of_step_line(step_line(step, num_steps, PARTS)) == (step, num_steps, PARTS)
    assert parts_of_step_line("step by step") is None


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_bar_is_one_line_of_the_terminal(width: int):
    drawn = shown(*(line + "\n" for line in LINES), width=width)
    rows = [row for row in drawn.replace("\r", "\n").split("\n") if "step" in row]
    assert rows
    for row in rows:
        visible = "".join(part.partition("m")[2] if index else part for index, part in enumerate(row.split("\x1b[")))
        assert len(visible) <= width
        assert "loss 5.3561" in visible
        assert ("samples/s" in visible) is (width >= 120)


def test_other_lines_stay_above_the_bar_and_below_it_once_it_is_full():
    drawn = shown("64 samples\n", LINES[0] + "\n", "a note\n", LINES[1] + "\n", LINES[2] + "\n", "the result\n")
    places = [drawn.index(text) for text in ("64 samples", "step 1/3", "a note", "step 3/3", "the result")]
    assert places == sorted(places)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_it_does_not_matter_how_the_output_is_cut(cuts: list[int]):
    text = "64 samples\n" + "".join(line + "\n" for line in LINES) + "the end\n"
    chunks: list[str] = []
    rest = text
    for cut in cuts:
        chunks, rest = [*chunks, rest[:cut]], rest[cut:]
    assert shown(*chunks, rest) == shown(text)


def test_no_terminal_no_bar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not can_draw(io.StringIO())


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_run_draws_a_bar_in_a_terminal_and_logs_plain_lines(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    command = script(tmp_path / "run.py", f"print({chr(10).join(LINES)!r})\n")
    log = tmp_path / "run.log"
    if not is_terminal:
        with log.open("wb") as file:
            assert follow(command, {}, file) == 0
        assert capsys.readouterr().out == "\n".join(LINES) + "\n"
        return
    import pty

    ours, theirs = pty.openpty()
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(iter(lambda: _some(ours), b"")), daemon=True)
    reader.start()
    with open(theirs, "w") as terminal, log.open("wb") as file:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert follow(command, {}, file) == 0
        monkeypatch.undo()
    reader.join(10)
    drawn = b"".join(read).decode()
    assert "\x1b[" in drawn
    assert "step 3/3" in drawn
    assert log.read_text() == "\n".join(LINES) + "\n"


def _some(descriptor: int) -> bytes:
    """What came; nothing once the other end is closed."""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
