"""Published figures of techniques: what was trained has room, and the table has what vlmplan says now."""

import pytest
from published_report import CASES, PROMISED_ERROR, README, has_room, peak_gib, peaks_table, savings_table

TABLE = README.read_text(encoding="utf-8")


class Unmarked:
    def mark(self, case):
        return ""


@pytest.mark.sweep
@pytest.mark.parametrize(
    "case", [one for one in CASES["longest"] if "--tiled-mlp" in one["options"]], ids=lambda case: case["id"]
)
def test_samples_that_were_trained_have_room(case):
    assert has_room(case["options"], case["tokens"])


@pytest.mark.parametrize("case", CASES["peaks"], ids=lambda case: case["id"])
def test_a_peak_is_within_ten_percent_of_a_published_one_or_says_why_not(case):
    is_close = abs(peak_gib(case) / case["gib"] - 1) <= PROMISED_ERROR
    assert is_close != ("because" in case)


@pytest.mark.parametrize("rows", [peaks_table, savings_table])
def test_the_table_is_up_to_date(rows):
    for row in rows(Unmarked())[2:]:
        assert row.removesuffix(" |") in TABLE


def test_every_difference_that_is_explained_is_in_the_page():
    explained = [case["because"].strip() for kind in ("peaks", "savings") for case in CASES[kind] if "because" in case]
    assert all(because in TABLE for because in explained)
