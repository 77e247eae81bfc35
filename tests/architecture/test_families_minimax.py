"""MiniMax-Text-01 against transformers."""

import pytest

from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.minimax import layer_types
from vlmplan.errors import InputError
from vlmplan.units import DType

LINEAR, FULL = "linear_attention", "full_attention"
MINIMAX = {
    "model_type": "minimax",
    "hidden_size": 512,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "block_size": 160,
    "num_local_experts": 8,
}
CONFIGS = {
    "taking turns": MINIMAX,
    "layers by name, one block, a window, tied": {
        **MINIMAX,
        "layer_types": [LINEAR, LINEAR, FULL, LINEAR],
        "block_size": 512,
        "sliding_window": 64,
        "tie_word_embeddings": True,
    },
    "lightning attention alone": {**MINIMAX, "layer_types": [LINEAR] * 4},
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


def test_tables_of_decays_are_there_for_every_layer_of_lightning_attention():
    model = build_model(MINIMAX)
    model.buffer_dtype = DType.FLOAT32
    assert model.layer_buffer_bytes == 2 * 4 * (1 + 160 + 160 + 160 * 160) * 4


def test_targets_of_attention_are_those_that_the_model_has():
    assert build_model(MINIMAX).attention_linears == ("q_proj", "k_proj", "v_proj", "o_proj")
    alone = build_model(CONFIGS["lightning attention alone"])
    assert alone.attention_linears == ("qkv_proj", "out_proj", "output_gate")


def test_full_and_lightning_attention_take_turns_where_the_file_does_not_say():
    assert layer_types(Config({"model_type": "minimax", "num_hidden_layers": 3})) == [FULL, LINEAR, FULL]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["conv"] * 4}, "names out of linear_attention and full_attention"),
        ({"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1; 0"),
    ],
)
def test_what_is_not_described_is_refused(changes, words):
    with pytest.raises(InputError, match=words):
        predicted_step({**MINIMAX, **changes}, BATCH)
