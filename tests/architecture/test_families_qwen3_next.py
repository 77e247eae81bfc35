"""Qwen3-Next against transformers: gated delta nets with one Linear for all they need, gated attention, and experts."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.model import Batch

CONFIG = {
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
ALTERED = {
    "as it is": {},
    "a key head for each value head, a dense layer": {
        "linear_num_key_heads": 4,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
    },
    "one key head, experts in every second layer": {
        "linear_num_key_heads": 1,
        "decoder_sparse_step": 2,
        "attention_bias": True,
    },
}
BATCH = Batch(micro_batch=2, num_tokens=150)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALTERED)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match({**CONFIG, **ALTERED[name]})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ALTERED)
def test_a_step_keeps_and_peaks_as_in_transformers(name):
    assert_step_matches({**CONFIG, **ALTERED[name]}, BATCH, text_inputs(BATCH), tolerance=0.001)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ALTERED)
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(name):
    assert_checkpointed_step_matches({**CONFIG, **ALTERED[name]}, BATCH, text_inputs(BATCH))
