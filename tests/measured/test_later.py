"""Published figures that were found later: each is near or says why not, and the page has what vlmplan says now."""

import re

import pytest
from later_report import LATER, LENGTHS, TABLE, VARY, compared, is_explained, is_right, row, verdict_row

PAGE = TABLE.read_text(encoding="utf-8")
KNOWN = [case for case in LATER["cases"] if VARY not in case["options"]]
"""Cases whose samples have one length; of the others each takes ten seconds and more, and the page alone has them."""


@pytest.mark.sweep
@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case["id"])
def test_a_figure_found_later_is_within_ten_percent_or_says_why_not(case):
    assert is_explained(case)
    assert all(row(one).removesuffix(" |") in PAGE for one in compared(case))


@pytest.mark.sweep
@pytest.mark.parametrize("case", LATER["verdicts"], ids=lambda case: f"{case['id']} {case['source'][-6:]}")
def test_an_outcome_found_later_is_what_the_verdict_says_or_the_case_says_why_not(case):
    assert is_right(case) != ("because" in case)
    assert verdict_row(case).removesuffix(" |") in PAGE


def test_a_loop_whose_code_is_known_is_planned_to_the_published_bytes():
    """can-i-finetune publishes torch's counters and the code that took them: QLoRA of a hand-written loop."""
    case = next(one for one in KNOWN if one["id"] == "Qwen2.5-1.5B QLoRA, 1 x 4,096 tokens")
    allocated, reserved = compared(case)
    assert abs(allocated.error) < 0.002
    assert abs(reserved.error) < 0.002


def test_the_page_has_every_figure_and_no_more():
    head, *_ = PAGE.partition("Why a figure")
    rows = re.findall(r"^\| .* \| (?:allocated|reserved|device) \| .*%", head, re.MULTILINE)
    assert len(rows) == sum(len(case["measured_gib"]) for case in LATER["cases"])


def test_the_page_counts_the_step_times_that_are_in_their_range():
    """Each row of the table has its lengths, and the summary and the page of accuracy what comes of all rows."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.partition("## Seconds of a step")[2].splitlines()]
    rows = [row for row in rows if len(row) == 8 and row[2] in LENGTHS]
    assert len(rows) == sum("measured_seconds" in case for case in LATER["cases"])
    accuracy = (TABLE.parents[2] / "docs/accuracy.md").read_text(encoding="utf-8")
    for lengths, said in (("known", "of the {0} step times found later"), ("assumed", "{1} of {0} do:")):
        ends = [[float(cell) for cell in (row[3], row[5], row[6])] for row in rows if row[2] == lengths]
        inside = sum(best <= published <= worst for published, best, worst in ends)
        assert f"| {lengths} | {len(ends)} | " in PAGE
        assert re.search(rf"^\| {lengths} \| {len(ends)} \| .* \| {inside} \|$", PAGE, re.MULTILINE)
        assert said.format(len(ends), inside) in accuracy
