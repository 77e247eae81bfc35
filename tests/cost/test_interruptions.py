"""The closed formula of billed hours against a simulated run, its limits, and the best distance of checkpoints."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.cost.interruptions import (
    SAVE_BYTES_PER_SECOND,
    SAVE_FIXED_SECONDS,
    best_interval_hours,
    billed_hours,
    num_checkpoints,
    save_hours,
)

HOURS = st.floats(0.01, 50)
RATES = st.floats(0.001, 0.5)


def simulated_hours(
    dice: random.Random, *, training: float, starting: float, saving: float, checkpoints: int, rate: float
) -> float:
    """One run, interruption by interruption."""
    hours, done, is_up = 0.0, 0, False
    while done < checkpoints:
        stretch = training / checkpoints + saving if is_up else starting
        until_interrupted = dice.expovariate(rate)
        if until_interrupted < stretch:
            hours, is_up = hours + until_interrupted, False
        else:
            hours, done, is_up = hours + stretch, done + is_up, True
    return hours


@pytest.mark.parametrize("rate", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("checkpoints", [1, 7])
def test_billed_hours_are_those_of_simulated_runs(rate: float, checkpoints: int):
    run = {"training": 3.0, "starting": 0.25, "saving": 0.05, "checkpoints": checkpoints, "rate": rate}
    dice = random.Random(2026)
    num_runs = 20000
    runs = [simulated_hours(dice, **run) for _ in range(num_runs)]
    mean = sum(runs) / num_runs
    deviation = math.sqrt(sum((hours - mean) ** 2 for hours in runs) / (num_runs - 1) / num_runs)
    expected = billed_hours(
        training_hours=3.0,
        starting_hours=0.25,
        saving_hours=0.05,
        checkpoints=checkpoints,
        interruptions_per_hour=rate,
    )
    assert abs(expected - mean) < 4 * deviation
    assert deviation < 0.02 * mean


def test_rare_interruptions_cost_a_start_and_half_a_stretch_each():
    rate, training, starting, saving, checkpoints = 1e-5, 30.0, 0.25, 0.05, 6
    smooth = billed_hours(training_hours=30.0, starting_hours=0.25, saving_hours=0.05, checkpoints=6)
    found = billed_hours(
        training_hours=training,
        starting_hours=starting,
        saving_hours=saving,
        checkpoints=checkpoints,
        interruptions_per_hour=rate,
    )
    while_working = rate * (training + checkpoints * saving) * (starting + (training / checkpoints + saving) / 2)
    while_starting = rate * starting * starting / 2
    assert found - smooth == pytest.approx(while_working + while_starting, rel=1e-3)


def test_without_interruptions_only_start_work_and_checkpoints_are_billed():
    found = billed_hours(training_hours=7.0, starting_hours=0.5, saving_hours=0.125, checkpoints=2)
    assert found == 0.5 + 7.0 + 2 * 0.125


def test_a_run_that_can_never_end_takes_for_ever():
    found = billed_hours(
        training_hours=1e6, starting_hours=1, saving_hours=1, checkpoints=1, interruptions_per_hour=1.0
    )
    assert found == math.inf


@given(training=HOURS, starting=st.floats(0.01, 1), saving=st.floats(0.001, 0.2), rate=RATES, more=st.floats(1, 3))
def test_more_interruptions_never_take_less(
    training: float, starting: float, saving: float, rate: float, more: float
) -> None:
    def hours(rate: float) -> float:
        return billed_hours(
            training_hours=training,
            starting_hours=starting,
            saving_hours=saving,
            checkpoints=5,
            interruptions_per_hour=rate,
        )

    assert hours(0.0) <= hours(rate) * (1 + 1e-12)
    assert hours(rate) <= hours(rate * more) * (1 + 1e-12)


@given(training=st.floats(5, 50), saving=st.floats(0.001, 0.05), rate=st.floats(0.01, 0.2))
def test_no_other_number_of_checkpoints_is_much_better(training: float, saving: float, rate: float):
    """Young's interval is of first order, so a per cent is left to it."""

    def hours(checkpoints: int) -> float:
        return billed_hours(
            training_hours=training,
            starting_hours=0.2,
            saving_hours=saving,
            checkpoints=checkpoints,
            interruptions_per_hour=rate,
        )

    chosen = num_checkpoints(training, saving, rate)
    assert hours(chosen) <= 1.01 * min(hours(other) for other in range(1, 3 * chosen + 3))


def test_best_interval_is_the_one_that_young_gives():
    assert best_interval_hours(0.02, 1 / 24) == pytest.approx(math.sqrt(2 * 0.02 * 24))
    assert best_interval_hours(0.02, 0.0) == math.inf


def test_machine_that_stays_writes_one_checkpoint():
    assert num_checkpoints(1000.0, 0.01, 0.0) == 1


def test_a_checkpoint_takes_its_bytes_and_what_every_checkpoint_takes():
    assert save_hours(int(7 * SAVE_BYTES_PER_SECOND)) == pytest.approx((7 + SAVE_FIXED_SECONDS) / 3600)
