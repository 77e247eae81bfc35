"""StarCoder 2, StableLM, Persimmon, Phi and Phi-3.5-MoE against transformers: Llamas with layer norms."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.model import Batch

BATCH = Batch(micro_batch=2, num_tokens=150)
SIZES = {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 4, "vocab_size": 100}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
DROPOUTS = {"residual_dropout": 0.1, "embedding_dropout": 0.1, "sliding_window": 64, "use_bias": False}
CONFIGS = {
    "starcoder2": {"model_type": "starcoder2", **SIZES, "residual_dropout": 0.0, "embedding_dropout": 0.0},
    "starcoder2 with dropout and a window": {"model_type": "starcoder2", **SIZES, **DROPOUTS},
    "phi": {"model_type": "phi", **SIZES},
    "phi with norms of each head": {
        "model_type": "phi",
        **SIZES,
        "hidden_size": 512,  # wide heads, of whose norms few rows come
        "qk_layernorm": True,
    },
    "phi with dropout": {
        "model_type": "phi",
        **SIZES,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": True,
    },
    "phimoe": {"model_type": "phimoe", **SIZES, "hidden_size": 512},
    "phimoe with noise and biases": {
        "model_type": "phimoe",
        **SIZES,
        "hidden_size": 512,
        "input_jitter_noise": 0.01,
        "attention_bias": True,
        "lm_head_bias": True,
    },
    "phimoe with windows, tied": {
        "model_type": "phimoe",
        **SIZES,
        "hidden_size": 512,
        "sliding_window": 64,
        "tie_word_embeddings": True,
    },
    "persimmon": {"model_type": "persimmon", **SIZES, "hidden_size": 1024},
    "persimmon without norms of each head, all of a head rotated": {
        "model_type": "persimmon",
        **SIZES,
        "qk_layernorm": False,
        "hidden_dropout": 0.1,
        "partial_rotary_factor": 1.0,
        "tie_word_embeddings": True,
    },
    "stablelm": {"model_type": "stablelm", **SIZES},
    "stablelm with a norm for each head": {
        "model_type": "stablelm",
        **SIZES,
        "hidden_size": 512,  # wide heads, of whose norms few rows come
        "qk_layernorm": True,
    },
    "stablelm whose attention is wider than its MLP": {"model_type": "stablelm", **SIZES, "hidden_size": 512},
    "stablelm with attention beside the MLP": {
        "model_type": "stablelm",
        **SIZES,
        "use_parallel_residual": True,
        "use_qkv_bias": True,
        "hidden_dropout": 0.1,
        "partial_rotary_factor": 0.5,
    },
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(name):
    # CPU keeps means and deviations of a layer norm in the model's type, CUDA in float32: 4 bytes a row and norm.
    assert_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH), tolerance=0.004)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(name):
    assert_checkpointed_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH), backward_tolerance=0.002)
