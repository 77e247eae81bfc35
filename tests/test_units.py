"""Numbers as text: GiB are 2^30, nothing that is there reads as nothing, and no text is further off than it rounds."""

import re
from math import prod

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vlmplan.units import GIB, KIB, MIB, DType, count_text, divisors, duration_text, gib_text, usd_text

BYTES_OF = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1, "byte": 1}
SECONDS_OF = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "days": 86400}
COUNT_OF = {"T": 1e12, "B": 1e9, "M": 1e6, "k": 1e3, "": 1}


def value(text: str, units: dict[str, float]) -> float:
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * units[unit]


def last_digit(text: str, units: dict[str, float]) -> float:
    """What one more in the last digit of ``text`` would be."""
    number, _, unit = text.partition(" ")
    return 10.0 ** -len(number.partition(".")[2]) * units[unit]


def test_gib_are_binary_and_not_10_to_the_9():
    assert GIB == 1024 * MIB == 1024 * 1024 * KIB
    assert gib_text(80 * GIB) == "80.00 GiB"
    assert gib_text(80e9) == "74.51 GiB"


def test_one_is_no_plural():
    assert [gib_text(num) for num in (-1, 0, 1, 2)] == ["-1 byte", "0", "1 byte", "2 bytes"]


@given(st.integers(1, 2**50))
@example(1)
def test_bytes_read_back_within_half_of_the_last_digit(num_bytes: int):
    text = gib_text(num_bytes)
    assert abs(value(text, BYTES_OF) - num_bytes) <= last_digit(text, BYTES_OF) / 2 * 1.001
    assert value(text, BYTES_OF) > 0


@given(st.integers(1, 2**50))
def test_missing_bytes_read_as_many_with_a_minus(num_bytes: int):
    assert gib_text(-num_bytes) == f"-{gib_text(num_bytes)}"


def test_no_bytes_are_0():
    assert gib_text(0) == "0"


@given(st.integers(0, 10**15))
def test_counts_read_back_within_three_digits(count: int):
    assert value(count_text(count), COUNT_OF) == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    ("count", "text"), [(999, "999"), (1000, "1 k"), (999_499, "999 k"), (999_500, "1 M"), (70_553_706_496, "70.6 B")]
)
def test_counts_change_their_unit_before_they_would_need_four_digits(count: int, text: str):
    assert count_text(count) == text


@given(st.floats(0.001, 1e9))
def test_prices_read_back_within_half_of_the_last_digit(usd: float):
    number = usd_text(usd).removeprefix("$").replace(",", "")
    digits = 10.0 ** -len(number.partition(".")[2])
    assert abs(float(number) - usd) <= digits / 2 * 1.001


@given(st.floats(1e-12, 0.001, exclude_max=True))
def test_price_that_is_almost_nothing_does_not_read_as_nothing(usd: float):
    assert usd_text(usd) == "less than $0.001"
    assert usd_text(0) == "$0"


@given(st.floats(0.0005, 1e9))
def test_durations_read_back_within_half_of_the_last_digit(seconds: float):
    text = duration_text(seconds)
    assert abs(value(text, SECONDS_OF) - seconds) <= last_digit(text, SECONDS_OF) / 2 * 1.001


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_longer_duration_never_reads_as_a_shorter_one(one: float, other: float):
    short, long = (duration_text(seconds) for seconds in sorted((one, other)))
    slack = last_digit(long, SECONDS_OF) + last_digit(short, SECONDS_OF)
    assert value(short, SECONDS_OF) <= value(long, SECONDS_OF) + slack


@pytest.mark.parametrize("text", [duration_text(s) for s in (0.2, 5, 119, 121, 7199, 7201, 172_799, 172_801)])
def test_durations_have_at_most_four_digits(text: str):
    assert len(re.sub(r"\D", "", text)) <= 4


def test_dtypes_have_torchs_names_and_widths():
    torch = pytest.importorskip("torch")
    for dtype in DType:
        assert getattr(torch, dtype.torch_name).itemsize == dtype.num_bytes
        assert getattr(torch, dtype.torch_name).is_floating_point == dtype.is_floating


@given(st.lists(st.integers(1, 400), max_size=3))
def test_divisors_are_those_that_divide_the_product(factors: list[int]):
    total = prod(factors)
    expected = [size for size in range(1, min(total, 10_000) + 1) if total % size == 0]
    assert divisors(*factors)[: len(expected)] == expected
    assert {total // size for size in divisors(*factors)} == set(divisors(*factors))


def test_divisors_of_the_largest_counts_are_found_at_once():
    assert len(divisors(10**9, 10**9)) == (18 + 1) * (18 + 1)  # 2^18 x 5^18
