"""Flint against transformers."""

import pytest

from text_steps import assert_step

FLINT = {
    "model_type": "flint",
    "vocab_size": 2000,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "head_dim": 32,
    "sliding_window": 128,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}
OTHERS = {
    **FLINT,
    "num_key_value_heads": 8,
    "attention_bias": True,
    "mlp_only_layers": [],
    "norm_topk_prob": False,
    "attention_dropout": 0.1,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"],
}
EACH = pytest.mark.parametrize("config", [FLINT, OTHERS], ids=["by default", "ungrouped, biases, all with experts"])


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    pytest.importorskip("transformers")
    from family_checks import assert_parameters_and_linears_match

    assert_parameters_and_linears_match(config, attention="eager")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, checkpoints):
    assert_step(config, attention="eager", checkpoints=checkpoints)
