"""ZeRO-0 where DeepSpeed makes AdamW itself: weights, master copies and gradients of a parameter group lie flat."""

import pytest
from test_walks import table_of, walked

from vlmplan.engines import engine_of
from vlmplan.engines.parameter_groups import parameter_groups
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, OptimizerKind, Precision

FULL = Recipe(zero_stage=0, deepspeed_adam=True, method=Method.FULL)
TWO_GROUPS = FULL.with_changes(method=Method.LORA, loraplus_lr_ratio=4.0)
ALIAS = "tinyllama-1.1b"


@pytest.mark.parametrize("recipe", [FULL, TWO_GROUPS], ids=["one group", "two"])
def test_states_in_closed_form_are_those_of_the_walk(recipe):
    table = table_of(ALIAS, recipe, (0.0, 0.0))
    closed, (_, walk) = engine_of(table, recipe, num_ranks=2).states(), walked(table, recipe, 2, None)
    assert (walk.resident, walk.at_start) == (closed.resident, closed.at_start)
    assert walk.step_peak.total == closed.step_peak.total
    assert walk.init_peak.total == closed.init_peak.total


def test_a_weight_takes_24_bytes_in_the_step_and_18_at_init():
    table = table_of(ALIAS, FULL, (0.0, 0.0))
    states, numel = engine_of(table, FULL, num_ranks=2).states(), table.num_trained
    weights, masters, moments, gradients, copies, flat = 2, 4, 4 + 4, 2, 4, 4
    assert states.step_peak.total == (weights + masters + moments + gradients + copies + flat) * numel
    assert states.init_peak.total == (weights + masters + moments + flat) * numel


def test_copies_of_one_group_are_gone_before_those_of_the_next_are_made():
    table = table_of(ALIAS, TWO_GROUPS, (0.0, 0.0))
    sizes = [sum([table.numels[one] for one in group]) for group in parameter_groups(table, TWO_GROUPS)]
    states = engine_of(table, TWO_GROUPS, num_ranks=2).states()
    assert len(sizes) == 2
    at_first = 2 * (sizes[0] + sizes[1]) + (4 + 4) * sizes[0]
    at_second = 4 * sizes[0] + (2 + 4 + 4) * sizes[1]
    assert states.step_peak.total - states.resident.total == max(at_first, at_second)


@pytest.mark.parametrize(
    "changes", [{"zero_stage": 1}, {"precision": Precision.FP32}, {"optimizer": OptimizerKind.SGD}], ids=str
)
def test_it_changes_nothing_elsewhere(changes):
    there = FULL.with_changes(**changes)
    table = table_of(ALIAS, there, (0.0, 0.0))
    without = engine_of(table, there.with_changes(deepspeed_adam=False), num_ranks=2).states()
    assert engine_of(table, there, num_ranks=2).states() == without
