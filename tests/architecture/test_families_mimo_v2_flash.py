"""MiMo-V2-Flash against transformers."""

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.mimo_v2_flash import layer_windows

MIMO = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 512,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "sliding_window": 64,
}
CONFIGS = {
    "by the class's rule": MIMO,
    "layers by name, biases, tied": {
        **MIMO,
        "num_key_value_heads": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, checkpoints):
    assert_step(config, attention="eager", checkpoints=checkpoints)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_frozen_experts_keep_what_transformers_keeps(checkpoints):
    frozen = ["model.embed_tokens", *(f"model.layers.{index}.mlp" for index in range(4))]
    assert_step(MIMO, attention="eager", checkpoints=checkpoints, frozen=frozen)


def test_layers_with_a_window_have_sinks_and_twice_the_key_heads():
    model = build_model(MIMO)
    by_name = {entry.name: entry.parameter.shape for entry in model.parameters()}
    assert by_name["model.layers.0.self_attn.k_proj.weight"] == (24, 512)
    assert by_name["model.layers.1.self_attn.k_proj.weight"] == (2 * 24, 512)
    assert {name for name in by_name if name.endswith("sinks")} == {
        f"model.layers.{index}.self_attn.sinks" for index in (1, 2, 3)
    }


def test_a_window_that_leaves_out_the_token_itself_is_one_wider():
    sizes = {**MIMO, "num_hidden_layers": 12}
    assert layer_windows(Config({**sizes, "sliding_window_size": 128})) == (
        None,
        *(129,) * 4,
        None,
        *(129,) * 5,
        None,
    )
