"""OLMo Hybrid against transformers: gated delta nets with a Linear for each thing, and attention without positions."""

import pytest

from layer_events import one_layer
from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.config import Config
from vlmplan.architecture.families.olmo_hybrid import layer_types
from vlmplan.architecture.model import Batch
from vlmplan.errors import UnknownNameError

CONFIG = {
    "model_type": "olmo_hybrid",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "num_attention_heads": 4,
    "linear_key_head_dim": 32,
}
ALTERED = {
    "without positions": {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    "with positions, several heads of values to one of keys": {
        "num_key_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_value_head_dim": 24,
        "linear_allow_neg_eigval": False,
    },
    "other layers, tied": {
        "layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention"],
        "tie_word_embeddings": True,
        "rope_theta": None,
        "attention_bias": True,
    },
}
BATCH = Batch(micro_batch=2, num_tokens=150)
EACH = pytest.mark.parametrize("name", ALTERED)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_match({**CONFIG, **ALTERED[name]})


@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(name):
    assert_step({**CONFIG, **ALTERED[name]}, BATCH)


@EACH
def test_a_checkpointed_step_peaks_as_in_transformers(name):
    altered = ALTERED[name]
    positions = 0 if "rope_theta" in str(altered) else 2 * BATCH.num_tokens * 16 * 4 / 6_800_000
    config = {**CONFIG, **altered}
    assert_checkpointed_step(config, BATCH, backward_tolerance=0.001 + positions)


def test_every_fourth_layer_attends_and_the_last_of_fewer():
    def attending(**own):
        return [name == "full_attention" for name in layer_types(Config({"model_type": "olmo_hybrid", **own}))]

    assert attending(num_hidden_layers=5) == [False, False, False, True, False]
    assert attending(num_hidden_layers=2) == [False, True]


def test_a_layer_of_another_kind_is_refused():
    with pytest.raises(UnknownNameError, match="conv"):
        one_layer({**CONFIG, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]})
