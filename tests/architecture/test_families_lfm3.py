"""LFM3 against transformers: an LFM2 with windows, gates and more norms."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

BATCH = Batch(micro_batch=2, num_tokens=150)
LFM3 = {
    "model_type": "lfm3",
    "hidden_size": 96,
    "intermediate_size": 240,
    "num_hidden_layers": 7,
    "vocab_size": 100,
    "pad_token_id": 0,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 40,
}
ALTERED = {
    "as it is": {},
    "no gates, no norms behind, untied": {
        "use_attention_gate": False,
        "use_sandwich_norm": False,
        "tie_word_embeddings": False,
    },
    "biases, narrow convolutions, no window": {
        "attention_bias": True,
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_hidden_layers": 3,
    },
    "convolutions alone": {"layer_types": ["conv"] * 3, "num_hidden_layers": 3},
}


@pytest.mark.parametrize("name", ALTERED)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match({**LFM3, **ALTERED[name]})


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALTERED)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_step_keeps_and_peaks_as_in_transformers(attention, name):
    config = {**LFM3, **ALTERED[name]}
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention=attention, tolerance=0.001)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALTERED)
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(name):
    assert_checkpointed_step_matches({**LFM3, **ALTERED[name]}, BATCH, text_inputs(BATCH))


def test_other_kinds_of_layers_are_refused():
    with pytest.raises(InputError, match="names out of full_attention, sliding_attention, conv"):
        build_model({**LFM3, "layer_types": ["linear_attention"] * 7})


def test_a_window_that_no_layer_has_may_be_null_and_that_of_some_layer_not():
    build_model({**LFM3, "sliding_window": None, "layer_types": ["full_attention"] * 7})
    with pytest.raises(InputError, match="sliding_window"):
        build_model({**LFM3, "sliding_window": None, "layer_types": ["sliding_attention"] * 7})
