"""Kimi Linear against transformers: Kimi delta attention written out in chunks, latent attention without positions."""

from functools import partial

import pytest

from tape_probe import predicted_step
from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.config import Config
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.kimi_linear import layer_types, sparse_layers
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

LAYERS = {"full_attn_layers": [3], "kda_layers": [1, 2, 4]}
LINEAR = {"head_dim": 32, "num_heads": 2, "short_conv_kernel_size": 4}
CONFIG = {
    "model_type": "kimi_linear",
    "hidden_size": 192,
    "intermediate_size": 384,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "pad_token_id": 0,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "linear_attn_config": {**LINEAR, **LAYERS},
    "first_k_dense_replace": 1,
}
OTHER = {
    **{key: value for key, value in CONFIG.items() if key not in ("linear_attn_config", "first_k_dense_replace")},
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "q_lora_rank": 40,
    "attention_bias": True,
    "n_group": 2,
    "moe_renormalize": False,
    "layer_types": ["full_attention", "linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
}
NARROW = {**OTHER, "layer_types": ["full_attention"] * 4, "v_head_dim": 24}
BATCH = Batch(micro_batch=2, num_tokens=192)
"""Whole chunks of 64 tokens."""


@pytest.mark.parametrize("config", [CONFIG, OTHER, NARROW], ids=["published keys", "class's keys", "no delta"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


step = partial(assert_step, tolerance=0.002)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("config", [CONFIG, OTHER], ids=["published keys", "class's keys"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, checkpoints):
    step(config, BATCH, checkpoints=checkpoints)


@pytest.mark.sweep
@pytest.mark.parametrize("batch", [Batch(micro_batch=1, num_tokens=100), Batch(micro_batch=3, num_tokens=40)], ids=str)
def test_a_sequence_that_fills_no_whole_chunk_keeps_and_peaks_as_in_transformers(batch):
    step(CONFIG, batch)


@pytest.mark.parametrize("frozen", [("model.layers.0", "model.embed_tokens"), ("model.layers.2", "lm_head")], ids=str)
def test_a_step_with_frozen_layers_keeps_and_peaks_as_in_transformers(frozen):
    step(CONFIG, BATCH, frozen=frozen)


def test_narrow_values_keep_and_peak_as_in_transformers():
    """Eager: where values have another width, sdpa on CPU has no kernel like those of a GPU."""
    step(NARROW, BATCH, attention="eager")


def test_layers_are_those_of_the_file_or_every_fourth_behind_the_first():
    plain = {"model_type": "kimi_linear", "num_hidden_layers": 9}
    names = ["full_attention" if index in (4, 8) else "linear_attention" for index in range(9)]
    assert list(layer_types(Config(plain))) == names
    assert [name == "full_attention" for name in layer_types(Config(CONFIG))] == [False, False, True, False]
    assert sparse_layers(Config(plain)) == [False, *[True] * 8]
    assert sparse_layers(Config({**plain, "first_k_dense_replace": 0})) == [True] * 9


def test_the_head_is_its_own_whatever_the_file_says():
    assert not build_model({**CONFIG, "tie_word_embeddings": True}).ties_weights


def test_layers_that_cannot_be_are_refused():
    for changes, words in (
        ({"linear_attn_config": {**LINEAR, **LAYERS, "kda_layers": [1, 2]}}, "each layer from 1 to 4"),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, "names out of"),
        ({"mlp_layer_types": ["dense", "dense", "dense", "thin"]}, "names out of dense and sparse"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
    ):
        with pytest.raises(InputError, match=words):
            predicted_step({**CONFIG, **changes}, BATCH)
