"""LFM2 with experts against the published checkpoint and against transformers."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from model_table import assert_counts_match_the_table
from vlmplan.architecture.model import Batch

BATCH = Batch(micro_batch=2, num_tokens=150)
MOE = {
    "model_type": "lfm2_moe",
    "hidden_size": 128,
    "intermediate_size": 192,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 5,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_dense_layers": 1,
    "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
}
PLAIN = {**MOE, "use_expert_bias": False, "norm_topk_prob": False, "tie_embedding": False, "num_dense_layers": 0}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("lfm2-8b-a1b")


@pytest.mark.parametrize("config", [MOE, PLAIN], ids=["as it is", "no bias, untied, no dense layer"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_and_linears_match(config)


@pytest.mark.parametrize(("config", "attention"), [(MOE, "sdpa"), (PLAIN, "eager")])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention):
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention=attention, tolerance=0.001)


def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers():
    assert_checkpointed_step_matches(MOE, BATCH, text_inputs(BATCH))
