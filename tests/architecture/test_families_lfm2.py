"""LFM2 against transformers: short convolutions and attention in one decoder."""

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
LFM2 = {
    "model_type": "lfm2",
    "hidden_size": 96,
    "intermediate_size": 240,
    "block_multiple_of": 32,
    "num_hidden_layers": 6,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "full_attn_idxs": [2, 4],
}
ALTERED = {
    "as it is": {},
    "wider convolutions, untied, a width of its own": {
        "conv_L_cache": 5,
        "tie_embedding": False,
        "block_ff_dim": 200,
        "block_auto_adjust_ff_dim": False,
    },
    "attention everywhere": {"full_attn_idxs": None},
    "a list of layers": {"full_attn_idxs": None, "layer_types": ["conv", "full_attention"] * 3},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ALTERED)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match({**LFM2, **ALTERED[name]})


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ALTERED)
def test_a_step_keeps_and_peaks_as_in_transformers(name):
    assert_step_matches({**LFM2, **ALTERED[name]}, BATCH, text_inputs(BATCH), tolerance=0.001)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ALTERED)
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(name):
    assert_checkpointed_step_matches({**LFM2, **ALTERED[name]}, BATCH, text_inputs(BATCH))


def test_convolutions_with_a_bias_are_refused():
    with pytest.raises(InputError, match="conv_bias is set"):
        build_model({**LFM2, "conv_bias": True})


def test_other_kinds_of_layers_are_refused():
    with pytest.raises(InputError, match="names out of full_attention and conv"):
        build_model({**LFM2, "layer_types": ["linear_attention"] * 6})
