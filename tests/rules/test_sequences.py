"""What GPUs that share samples can do, and with which words the rest is refused."""

import pytest

from vlmplan.recipe import Recipe
from vlmplan.rules import ModelFacts, problems

LLAMA = ModelFacts(id="a-llama", model_types=frozenset({"llama"}), num_heads=32, num_kv_heads=8)


def sentences(recipe, model=LLAMA):
    return [problem.sentence for problem in problems(recipe, model=model)]


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_llama_is_shared_under_stages_1_to_3(size, stage):
    assert sentences(Recipe(zero_stage=stage, sequence_parallel=size)) == []


def test_heads_of_keys_and_values_may_be_fewer_than_the_ranks():
    few = ModelFacts(id="few", model_types=frozenset({"llama"}), num_heads=32, num_kv_heads=2)
    assert sentences(Recipe(zero_stage=3, sequence_parallel=8), few) == []


def test_a_recurrent_model_is_refused_for_its_state():
    facts = ModelFacts(id="qwen3.5", model_types=frozenset({"qwen3_5", "qwen3_5_text"}))
    (sentence,) = sentences(Recipe(zero_stage=3, sequence_parallel=2), facts)
    assert "gated delta nets" in sentence


def test_samples_of_a_step_are_those_of_the_groups():
    recipe = Recipe(zero_stage=3, sequence_parallel=4, micro_batch=3, grad_accum=5)
    assert recipe.samples_per_step(8) == 3 * 5 * 8 // 4
