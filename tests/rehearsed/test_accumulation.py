"""ZeRO-3 with several micro batches a step, where the first that goes by a recorded order decides otherwise than later
ones would: beside rehearsals, which run DeepSpeed's own coordinator."""

from typing import Any

import pytest
from beside_rehearsal import assert_as_rehearsed

from planned import of_few_layers
from recipe_cases import cluster
from vlmplan.estimation import Estimate, estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.workload import Workload

ADAPTERS_STAY = 300_000
"""A persistence threshold above every adapter of the models here."""


def sizes(prefetch: int, live: int, reuse: int) -> ZeroSettings:
    return ZeroSettings(
        reduce_bucket_size=2_000_000,
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=reuse,
        stage3_param_persistence_threshold=ADAPTERS_STAY,
        overlap_comm=True,
    )


def of_language(**changes: Any) -> Estimate:
    recipe = Recipe(method=Method.LORA, zero_stage=3).with_changes(**changes)
    return estimate(Workload(model=of_few_layers("smollm2-135m", 10), seq_len=128), recipe, cluster(2))


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize(
    "changes",
    [
        {"grad_accum": 3, "zero": sizes(13_391_847, 34_483_383, 6_000_000)},
        {
            "grad_accum": 4,
            "zero": sizes(7_088_526, 45_253_444, 36_000_000),
            "evaluation": Evaluation(batch=4, samples=16),
        },
        {"grad_accum": 2, "zero": sizes(9_759_015, 45_706_983, 0)},
    ],
    ids=["", "evaluated", "nothing used again"],
)
def test_weights_are_let_go_as_the_first_micro_batch_has_decided(changes: dict[str, Any]):
    assert_as_rehearsed(of_language(**changes))


@pytest.mark.long
@pytest.mark.sweep
def test_those_of_a_model_that_sees_are_too():
    recipe = Recipe(method=Method.FULL, zero_stage=3, grad_accum=2, zero=sizes(2_442_122, 9_670_137, 1_750_000))
    files = of_few_layers("internvl3-1b", 3)
    assert_as_rehearsed(estimate(Workload(model=files, seq_len=512, images_per_sample=1), recipe, cluster(2)))
