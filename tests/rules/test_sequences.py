"""What GPUs that share samples can do, and what is refused with which words."""

import pytest

from vlmplan.recipe import AttentionImplementation, LossKind, Recipe
from vlmplan.rules import ModelFacts, problems
from vlmplan.rules.base import RuleContext
from vlmplan.rules.check import RULES

LLAMA = ModelFacts(id="a-llama", model_types=frozenset({"llama"}), num_heads=32, num_kv_heads=8)


def sentences(recipe, *, num_gpus=8, model=LLAMA):
    context = RuleContext(recipe=recipe, num_gpus=num_gpus, model=model)
    return [problem.sentence for rule in RULES if (problem := rule.problem(context)) is not None]


def shared(size=2, **changes):
    return Recipe(**{"zero_stage": 3, "sequence_parallel": size, **changes})


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_llama_is_shared_under_stages_1_to_3(size, stage):
    assert sentences(shared(size, zero_stage=stage)) == []


@pytest.mark.parametrize(
    ("recipe", "num_gpus", "said"),
    [
        (shared(3), 6, "does not share 32 attention heads and 8 heads of keys and values"),
        (shared(4), 6, "does not divide 6 GPU(s)"),
        (shared(2, zero_stage=None), 8, "give --zero-stage 3"),
        (shared(2, zero_stage=0), 8, "give --zero-stage 3"),
        (shared(2, attention=AttentionImplementation.EAGER), 8, "--attention eager"),
        (shared(2, loss=LossKind.MODEL), 8, "--loss model"),
        (shared(2, hpz=2), 8, "--hpz 2"),
    ],
)
def test_what_it_does_not_go_with_is_refused(recipe, num_gpus, said):
    (sentence,) = sentences(recipe, num_gpus=num_gpus)
    assert said in sentence


def test_heads_of_keys_and_values_may_be_fewer_than_the_ranks():
    few = ModelFacts(id="few", model_types=frozenset({"llama"}), num_heads=32, num_kv_heads=2)
    assert sentences(shared(8), model=few) == []


def test_a_recurrent_model_is_refused_for_its_state():
    facts = ModelFacts(id="qwen3.5", model_types=frozenset({"qwen3_5", "qwen3_5_text"}))
    (sentence,) = sentences(shared(2), model=facts)
    assert "gated delta nets" in sentence


def test_a_model_that_sees_is_refused():
    facts = ModelFacts(id="sees", model_types=frozenset({"llava", "llama"}))
    (sentence,) = sentences(shared(2), model=facts)
    assert "not sees" in sentence


def test_windows_need_a_kernel_without_masks():
    facts = ModelFacts(id="slides", model_types=frozenset({"mistral"}), num_heads=32, num_kv_heads=8, has_windows=True)
    (sentence,) = sentences(shared(2), model=facts)
    assert "flash_attention_2" in sentence
    assert sentences(shared(2, attention=AttentionImplementation.FLASH_ATTENTION_2), model=facts) == []


def test_samples_of_a_step_are_those_of_the_groups():
    recipe = shared(4, micro_batch=3, grad_accum=5)
    assert recipe.samples_per_step(8) == 3 * 5 * 8 // 4
    assert problems(recipe, model=LLAMA, global_batch=3 * 5 * 2) == []
