"""LoRA+ updates its two parameter groups one after the other: what an update takes is of the larger one."""

import pytest

from planned import shortened
from vlmplan.architecture.prepare import prepared_model
from vlmplan.engines import engine_of
from vlmplan.engines.events import HighWater
from vlmplan.engines.parameter_groups import parameter_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method

LORA = Recipe(method=Method.LORA, fuses_optimizer=False)
PLUS = LORA.with_changes(loraplus_lr_ratio=16.0)


def table_for(recipe: Recipe) -> ParameterTable:
    return ParameterTable(prepared_model(shortened("tinyllama-1.1b", num_hidden_layers=2).config, recipe))


def test_lora_b_and_magnitudes_are_in_the_second_group():
    recipe = PLUS.with_changes(use_dora=True)
    table = table_for(recipe)
    slower, faster = parameter_groups(table, recipe)
    names = [entry.name for entry in table.trained_entries]
    assert [names[ordinal] for ordinal in slower] == [name for name in names if "lora_A" in name]
    assert sorted([*slower, *faster]) == list(range(len(names)))
    assert parameter_groups(table, recipe.with_changes(loraplus_lr_ratio=None)) == [range(len(names))]


@pytest.mark.parametrize(
    ("engine", "of_all", "of_a_group"),
    [
        ({"zero_stage": None}, 0, 4),  # roots of second moments in float32
        ({"zero_stage": 0}, 4, 4),  # beside copies of all gradients
        ({"zero_stage": 1}, 0, 8),  # the gradients' cast and roots
        ({"zero_stage": 2}, 0, 8),
        ({"zero_stage": 3}, 0, 8),  # of a sub-group
        ({"zero_stage": None, "fsdp": True}, 0, 4),
    ],
    ids=str,
)
def test_the_larger_group_decides_what_an_update_takes(engine: dict[str, object], of_all: int, of_a_group: int):
    recipe = PLUS.with_changes(**engine)
    table, water = table_for(recipe), HighWater()
    largest = max(sum(table.numels[ordinal] for ordinal in group) for group in parameter_groups(table, recipe))
    expected = of_all * table.num_trained + of_a_group * largest
    walked = engine_of(table, recipe, num_ranks=1, sink=water)
    walked.load(is_on_cpu=False)
    walked.build()
    walked.step(is_first=True)
    before = water.most = water.live
    walked.step(is_first=False)
    assert water.most - before == walked.states().step_peak.temporaries == expected
    assert largest < 0.9 * table.num_trained
