"""ZeRO-3's small weights, which are whole but for the optimizer's step, where the host has their shards."""

import pytest

from small_models import table_of
from vlmplan.engines import engine_of
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import DType

SMALL, LARGE, COUNT = 1000, 10**6, 7
RECIPE = Recipe(
    zero_stage=3,
    offload_optimizer=Offload.CPU,
    offload_params=Offload.CPU,
    zero=ZeroSettings(stage3_param_persistence_threshold=SMALL),
)


@pytest.mark.parametrize(("num_ranks", "arriving"), [(1, 0), (4, COUNT * 2 * SMALL // 4)])
def test_their_shards_come_together_after_a_step_and_after_a_checkpoint(num_ranks, arriving):
    engine = engine_of(table_of([SMALL] * COUNT + [LARGE], DType.BFLOAT16), RECIPE, num_ranks=num_ranks)
    states = engine.states()
    assert states.resident.weights == COUNT * 2 * SMALL  # a rank that is alone has copies of what is on its host, too
    assert states.step_peak.weights == COUNT * 2 * SMALL + arriving
    assert engine.saving_bytes == arriving
