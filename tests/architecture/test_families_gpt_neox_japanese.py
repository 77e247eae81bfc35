"""GPT-NeoX Japanese against transformers."""

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model

JAPANESE = {
    "model_type": "gpt_neox_japanese",
    "vocab_size": 2048,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_multiple_size": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PARTLY_ROTATED = {**JAPANESE, "rotary_pct": 0.5, "tie_word_embeddings": False, "hidden_dropout": 0.1}


def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers():
    assert_parameters_match(JAPANESE, attention="eager")


@pytest.mark.parametrize("config", [JAPANESE, PARTLY_ROTATED], ids=["all rotated, tied", "partly rotated"])
def test_a_step_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, attention="eager")


def test_the_last_layer_alone_has_a_bias():
    names = [entry.name for entry in build_model(JAPANESE).parameters()]
    assert [name for name in names if name.endswith("bias") and "attention." in name] == [
        "gpt_neox_japanese.layers.3.attention.dense_bias"
    ]
