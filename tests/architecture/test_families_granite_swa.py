"""Granite SWA, with and without experts, against transformers, which has eager attention alone for them."""

import pytest

from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.errors import InputError

SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "vocab_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "sliding_window": 128,
}
SWA = {"model_type": "granite_swa", **SIZES}
MOE = {"model_type": "granitemoe_swa", **SIZES, "num_local_experts": 8, "num_experts_per_tok": 2}
CONFIGS = {
    "granite_swa": SWA,
    "granite_swa, a key head for each query head": {**SWA, "num_key_value_heads": 8, "attention_bias": True},
    "granite_swa, positions of two kinds and none": {**SWA, "layer_rope_theta": [0, 10000.0, 10000.0, 500000.0] * 2},
    "granitemoe_swa": MOE,
    "granitemoe_swa with a shared MLP, without windows": {
        **MOE,
        "shared_intermediate_size": 256,
        "layer_types": ["full_attention"] * 8,
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


def test_positions_have_to_be_given_for_every_layer():
    with pytest.raises(InputError, match="layer_rope_theta"):
        predicted_step({**SWA, "layer_rope_theta": [10000.0]}, BATCH, implementation="eager")
