"""LoRA+ updates its two parameter groups one after the other: what an update takes is of the larger one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import shortened
from vlmplan.architecture.prepare import prepared_model
from vlmplan.engines import engine_of
from vlmplan.engines.events import HighWater
from vlmplan.engines.parameter_groups import OptimizerGroup, flat_order, parameter_groups
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.partitions import overlapping, partition_of
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.zero import ZeroSettings

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


DEALT = Recipe(zero_stage=2, zero=ZeroSettings(round_robin_gradients=True))


@given(num_parameters=st.integers(1, 40), num_ranks=st.integers(1, 9))
def test_parameters_are_dealt_to_ranks_as_deepspeed_deals_them(num_parameters: int, num_ranks: int):
    source = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    dealt, places = source.DeepSpeedZeroOptimizer._round_robin_reorder(None, list(range(num_parameters)), num_ranks)
    assert list(flat_order(range(num_parameters), DEALT, num_ranks)) == dealt
    assert all(dealt[place] == ordinal for ordinal, place in places.items())


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_what_reaches_into_a_partition_is_what_deepspeed_finds_there(num_ranks: int):
    torch = pytest.importorskip("torch")
    source = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2")
    table = table_for(DEALT)
    order = flat_order(range(len(table.numels)), DEALT, num_ranks)
    group = OptimizerGroup(table, order)
    tensors = [torch.empty(table.numels[ordinal], device="meta") for ordinal in order]
    for rank in range(num_ranks):
        partition = partition_of(group.numel, num_ranks, rank)
        own, _, _ = source.DeepSpeedZeroOptimizer.get_partition_info(
            None, tensors, partition.num_elements, rank, [0] * len(tensors)
        )
        found = {id(tensor) for tensor in own}
        reached = range(*overlapping(group, partition))
        assert [at for at, tensor in enumerate(tensors) if id(tensor) in found] == list(reached)


def test_dealt_parameters_change_what_a_rank_owns_and_not_what_it_updates():
    plain, owned = DEALT.with_changes(zero=ZeroSettings()), {}
    for recipe in (plain, DEALT):
        engines = [engine_of(table_for(recipe), recipe, num_ranks=4, rank=rank) for rank in range(4)]
        owned[recipe.zero] = [engine.owned_bytes for engine in engines]
        assert len({engine.partition.num_elements for engine in engines}) == 1
    assert owned[plain.zero] != owned[DEALT.zero]
    one_rank = [engine_of(table_for(one), one, num_ranks=1).states() for one in (plain, DEALT)]
    assert one_rank[0] == one_rank[1]
