"""The time that is left goes down as the steps do, whatever one of them took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan_trainer.reporting.remaining import TRIMMED_FRACTION, WINDOW, Remaining

SECONDS = st.floats(0.01, 1000)


def after(seconds: list[float], *, num_slow: int = 1) -> Remaining:
    made = Remaining(num_slow)
    for each in seconds:
        made.add(each)
    return made


@given(SECONDS, SECONDS, st.integers(1, 5), st.integers(1, 2 * WINDOW))
def test_slow_first_steps_count_for_nothing_once_there_are_others(slow: float, usual: float, num_slow: int, count: int):
    made = after([slow] * num_slow + [usual] * count, num_slow=num_slow)
    assert made.step_seconds == pytest.approx(usual)


@given(SECONDS, st.floats(2, 1e6), st.integers(10, WINDOW), st.data())
def test_one_step_that_waited_changes_nothing(usual: float, factor: float, count: int, data: st.DataObject):
    steps = [usual] * count
    steps[data.draw(st.integers(0, count - 1))] *= factor
    assert after([usual, *steps]).step_seconds == pytest.approx(usual)


@given(st.lists(SECONDS, min_size=1, max_size=3 * WINDOW))
def test_it_lies_between_the_fastest_and_the_slowest_step(steps: list[float]):
    found = after(steps).step_seconds
    assert min(steps) * (1 - 1e-9) <= found <= max(steps) * (1 + 1e-9)


def test_steps_of_two_lengths_are_taken_at_their_mean():
    steps = [2.0, 5.0] * (WINDOW // 2)
    num_trimmed = int(WINDOW * TRIMMED_FRACTION)
    rest = sorted(steps)[num_trimmed:-num_trimmed]
    assert after([7.0, *steps]).step_seconds == pytest.approx(sum(rest) / len(rest)) == 3.5


def test_a_change_of_pace_is_followed():
    assert after([1.0] * 500 + [3.0] * WINDOW).step_seconds == pytest.approx(3.0)
    assert after([]).step_seconds == 0
    assert after([4.0, 2.0], num_slow=3).step_seconds == 2.0
