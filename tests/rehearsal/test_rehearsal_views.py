"""What a rehearsal looks like: sparkline, tables, picture, page and trace of the recorded one."""

import io
import json
import re
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recorded_rehearsal import comparison, recorded

from picture_checks import brings_everything
from vlmplan.answers.rehearsal import print_rehearsal
from vlmplan.rehearsal import Comparison
from vlmplan.rehearsal.perfetto import trace_text
from vlmplan.rehearsal.result import PhaseSpan
from vlmplan.render import progress
from vlmplan.render.progress import progress_bar, waiting
from vlmplan.render.sparkline import BLOCKS, PLAIN, highest_per_cell, phase_line, phase_lines, sparkline
from vlmplan.reports.rehearsal import rehearsal_svg

WIDTH = 80
TOTALS = st.lists(st.integers(0, 10**12), max_size=300)
WIDTHS = st.integers(1, 120)


# -- sparkline -------------------------------------------------------------------------------------------------------


@given(totals=TOTALS, width=WIDTHS)
def test_sparkline_is_as_wide_as_asked_and_shows_the_highest(totals: list[int], width: int):
    line = sparkline(totals, width)
    assert len(line) == (width if totals else 0)
    assert set(line) <= set(BLOCKS)
    if any(totals):
        assert BLOCKS[-1] in line


@given(totals=TOTALS, width=WIDTHS)
def test_no_moment_is_left_out_of_the_cells(totals: list[int], width: int):
    cells = highest_per_cell(totals, width)
    assert set(cells) <= set(totals)
    assert max(cells, default=0) == max(totals, default=0)


def test_heights_are_proportions_of_the_highest():
    assert sparkline([0, 1, 4, 7], 4, levels="01234567") == "0147"
    assert len(PLAIN) == len(BLOCKS)
    assert PLAIN.isascii()


@given(
    st.lists(st.sampled_from(("load", "init", "forward", "backward", "step", "save")), min_size=1, max_size=8),
    st.sampled_from((60, 80, 120, 200)),
)
def test_phases_of_equal_length_keep_their_names_at_every_usual_width(names: list[str], width: int):
    last = 10 * (len(names) - 1) * width // (10 * len(names))
    assume(width - last > len(names[-1]))  # behind the last phase there is no room to borrow from
    marks = [PhaseSpan(begin=10 * i, name=name, step=0, end=10 * (i + 1)) for i, name in enumerate(names)]
    lines = phase_lines(marks, 10 * len(names), width)
    assert sorted(" ".join(lines).replace("|", " ").split()) == sorted(names)
    assert all(len(line) <= width for line in lines)
    for i, name in enumerate(names):
        assert any(line[10 * i * width // (10 * len(names)) :].startswith(f"|{name}") for line in lines)


def test_phases_begin_where_their_events_do():
    marks = [
        PhaseSpan(begin=begin, name=name, step=0, end=end) for begin, name, end in ((0, "load", 50), (50, "init", 100))
    ]
    assert phase_line(marks, 100, 20) == "|load     |init"
    assert phase_line(marks, 100, 6) == "|lo|in"


@given(starts=st.lists(st.integers(0, 1000), min_size=1, max_size=30), width=WIDTHS)
def test_phase_line_never_gets_wider(starts: list[int], width: int):
    marks = [PhaseSpan(begin=begin, name="backward", step=1, end=begin) for begin in sorted(starts)]
    assert len(phase_line(marks, 1000, width)) <= width


# -- tables ----------------------------------------------------------------------------------------------------------


def printed(found: Comparison, capsys: pytest.CaptureFixture[str]) -> str:
    print_rehearsal(found, ["a sentence about the hardware"])
    return capsys.readouterr().out


def test_printed_rehearsal_says_everything_once(capsys: pytest.CaptureFixture[str]):
    out = printed(comparison(), capsys)
    for part in (
        "rehearsed: rank 0 of 2, 3 steps",
        "GiB of",
        "as rehearsed",
        "as estimated",
        "allocated, at the peak of",
        "largest at the peak",
        "collectives of a step",
        "memory over time",
        "not rehearsed: cuBLAS workspaces: 0.02 GiB, added",
        "not rehearsed: workspaces of kernels other than attention's: of unknown size, not added",
        "note: a sentence about the hardware",
    ):
        assert out.count(part) >= 1, part
    for name in ("load", "init", "forward", "backward", "step", "save"):
        assert re.search(rf"^{name} ", out, re.MULTILINE), name


def test_largest_storages_have_their_module_or_function(capsys: pytest.CaptureFixture[str]):
    makers = [one.maker for one in comparison().largest if one.maker]
    assert any(maker.startswith("deepspeed ") for maker in makers)
    out = printed(comparison(), capsys)
    assert all(maker in out for maker in makers)


def test_sparkline_of_a_rehearsal_is_as_wide_as_a_terminal(capsys: pytest.CaptureFixture[str]):
    lines = printed(comparison(), capsys).splitlines()
    assert [len(line) for line in lines if line and set(line) <= set(BLOCKS)] == [WIDTH]


# -- picture, page, trace --------------------------------------------------------------------------------------------


def test_the_picture_brings_everything_with_it():
    brings_everything(rehearsal_svg(comparison()))


def with_name(name: str) -> Comparison:
    estimate = comparison().estimate
    model = replace(estimate.workload.model, id=name)
    return Comparison(recorded(), replace(estimate, workload=replace(estimate.workload, model=model)))


def test_title_is_escaped():
    name = "<script>alert('1')</script>&\"x"
    text = rehearsal_svg(with_name(name))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_svg_is_xml_with_a_background_for_each_phase_and_one_peak():
    root = ElementTree.fromstring(rehearsal_svg(comparison()))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    styles = [rect.get("class", "") for rect in root.findall(f"{space}rect")]
    assert styles[0] == "paper"
    assert ".paper { fill: #ffffff; }" in root.findtext(f"{space}style", "")
    assert len([style for style in styles if style.startswith("phase")]) == len(recorded().marks)
    assert len(root.findall(f"{space}circle")) == 1
    assert sum("peak" in (text.text or "") for text in root.findall(f"{space}text")) == 1


def test_svg_stays_within_its_frame():
    root = ElementTree.fromstring(rehearsal_svg(comparison()))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    paths = root.findall("{http://www.w3.org/2000/svg}path")
    assert {"weights", "optimizer_states", "activations"} <= {path.attrib["class"] for path in paths}
    for path in paths:
        points = list(points_of(path.attrib["d"]))
        assert len(points) >= 4
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def points_of(drawn: str) -> Iterator[tuple[int, int]]:
    """Where a path goes: forth along its upper edge in steps, and back along the lower."""
    x = y = 0
    for command, numbers in re.findall(r"([MLlH])([-\d ]+)", drawn):
        values = [int(number) for number in numbers.split()]
        if command == "H":
            x = values[0]
        elif command == "l":
            x, y = x + values[0], y + values[1]
        else:
            x, y = values
        yield x, y


def test_trace_is_json_in_the_order_of_time():
    events = json.loads(trace_text(comparison()))["traceEvents"]
    times = [event["ts"] for event in events]
    assert times == sorted(times)
    assert {event["ph"] for event in events} == {"M", "C", "X"}
    assert {event["pid"] for event in events} == {0}


def test_trace_counts_what_is_allocated_and_reserved():
    found = comparison()
    events = json.loads(trace_text(found))["traceEvents"]
    counts = {
        name: [event["args"]["bytes"] for event in events if (event["ph"], event["name"]) == ("C", name)]
        for name in ("allocated", "reserved")
    }
    assert max(counts["allocated"]) == max(found.live_bytes)
    assert found.replay is not None
    assert max(counts["reserved"]) == found.replay.peak_reserved_bytes


def test_trace_has_a_slice_for_each_phase_that_ends_before_the_next():
    slices = [event for event in json.loads(trace_text(comparison()))["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in slices] == [mark.name for mark in recorded().marks]
    for before, after in pairwise(slices):
        assert before["ts"] + before["dur"] <= after["ts"]


# -- progress --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progressed(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("rehearsing", 2) as say:
        say("backward of step 1")
        say("save")
    return stream.getvalue()


def test_a_terminal_sees_a_bar_with_the_phase(monkeypatch: pytest.MonkeyPatch):
    assert "rehearsing: save" in progressed(Terminal(), monkeypatch)


def test_a_pipe_sees_nothing(monkeypatch: pytest.MonkeyPatch):
    assert progressed(io.StringIO(), monkeypatch) == ""


def test_a_terminal_is_told_that_a_search_goes_on_where_it_takes_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    for seconds, is_told in ((0.0, True), (60.0, False)):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "WAITING_SECONDS", seconds)
        with waiting("searching"):
            time.sleep(0.2 if is_told else 0)
        assert ("searching" in stream.getvalue()) is is_told


def test_a_pipe_is_told_nothing_of_a_search(monkeypatch: pytest.MonkeyPatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "WAITING_SECONDS", 0.0)
    with waiting("searching"):
        time.sleep(0.1)
    assert stream.getvalue() == ""
