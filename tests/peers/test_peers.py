"""Others' estimators are asked as they are documented, and the table of their errors is what the command writes."""

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("accelerate")

from hypothesis import given
from hypothesis import strategies as st
from peers_report import (
    ESTIMATORS,
    TABLE,
    by_rule_of_thumb,
    card_bytes,
    is_false_fit,
    largest_layer_params,
    of_accelerate,
    of_deepspeed,
    of_vlmplan,
    rehearsed_case,
    report,
    smallest_card,
)

STAGE_3 = "qwen2-vl-2b full stage 3 4"
NUM_PARAMS, VOCABULARY, HIDDEN = 534_869_504, 151_936, 1536


def test_deepspeed_takes_all_states_of_a_rank_and_its_largest_layer_in_float32():
    case = rehearsed_case(STAGE_3)
    assert case.estimate.num_params == NUM_PARAMS
    assert largest_layer_params(case.estimate) == VOCABULARY * HIDDEN
    assert of_deepspeed(case) == 4 * VOCABULARY * HIDDEN + int(18 * NUM_PARAMS / 4)


def test_accelerate_knows_nothing_of_ranks():
    assert of_accelerate(rehearsed_case(STAGE_3)) == 2 * 4 * NUM_PARAMS


def test_rule_of_thumb_cuts_everything_at_stage_3():
    assert by_rule_of_thumb(rehearsed_case(STAGE_3)) == (2 + 2 + 4 + 4 + 4) * NUM_PARAMS / 4


def test_vlmplan_is_held_against_the_highest_phase_of_the_rehearsal():
    case = rehearsed_case(STAGE_3)
    assert of_vlmplan(case) == pytest.approx(case.true_bytes, rel=1e-3)


@given(st.floats(1, 300e9), st.floats(1, 300e9))
def test_a_false_fit_is_of_an_estimate_that_is_too_low(estimate: float, truth: float):
    if is_false_fit(estimate, truth):
        assert estimate < truth
        assert smallest_card(estimate) != smallest_card(truth)


def test_the_smallest_card_has_room():
    for usable in card_bytes():
        assert smallest_card(usable) == usable
    assert smallest_card(card_bytes()[-1] + 1) is None


def test_every_estimator_stands_in_every_table():
    lines = TABLE.read_text().splitlines()
    for name in ESTIMATORS:
        assert sum(line.startswith(f"| {name} |") for line in lines) == 3


@pytest.mark.sweep
def test_the_tables_are_up_to_date():
    assert TABLE.read_text() == report()
