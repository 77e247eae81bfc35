"""Estimates beside published measurements, each on the counter that was read."""

import pytest
from measured_report import CASES, TABLE, error, estimated, table

PROMISED_ERROR = 0.10


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["id"])
def test_an_estimate_is_within_ten_percent_of_a_measurement_or_says_why_not(case):
    errors = {counter: error(case, counter, gib) for counter, gib in estimated(case).items()}
    is_close = all(abs(value) <= PROMISED_ERROR for value in errors.values())
    assert is_close != ("because" in case), errors


def test_the_table_is_up_to_date():
    assert TABLE.read_text() == table()
