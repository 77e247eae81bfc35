"""Mamba, Falcon Mamba and Jamba against transformers: what a loop over tokens keeps, and what is around it."""

import pytest

from tape_probe import predicted_step
from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

MAMBA = {"model_type": "mamba", "hidden_size": 96, "num_hidden_layers": 3, "vocab_size": 100, "state_size": 8}
SIZES = {"hidden_size": 96, "intermediate_size": 144, "vocab_size": 100, "num_attention_heads": 4}
JAMBA = {"model_type": "jamba", **SIZES, "num_key_value_heads": 2, "num_hidden_layers": 6, "num_experts": 4}
JAMBA |= {"attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 8}
CONFIGS = {
    "mamba": MAMBA,
    "mamba, residual in 16 bits, untied": {**MAMBA, "residual_in_fp32": False, "tie_word_embeddings": False},
    "mamba without a bias of its convolution": {**MAMBA, "use_conv_bias": False, "expand": 3, "time_step_rank": 10},
    "falcon_mamba": {**MAMBA, "model_type": "falcon_mamba"},
    "falcon_mamba of a width of its own": {**MAMBA, "model_type": "falcon_mamba", "intermediate_size": 160},
    "jamba": JAMBA,
    "jamba without experts": {**JAMBA, "num_experts": 1, "mamba_proj_bias": True, "tie_word_embeddings": True},
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(12)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("sizes", [(2, 80), (1, 37)], ids=["two samples", "one sample"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, sizes, checkpoints):
    """Rows of one sample are multiplied as they lie; those of several are copied."""
    batch = Batch(micro_batch=sizes[0], num_tokens=sizes[1])
    assert_one = assert_checkpointed_step if checkpoints else assert_step
    assert_one(config, batch, attention="eager")


@pytest.mark.parametrize("names", [("A_log",), ("x_proj", "dt_proj", "out_proj"), ("A_log", "dt_proj", "conv1d")])
def test_weights_that_are_frozen_keep_less(names):
    frozen = ("backbone.embeddings", *(f"backbone.layers.{layer}.mixer.{name}" for layer in range(3) for name in names))
    untied = {**MAMBA, "tie_word_embeddings": False}
    assert_step(untied, Batch(micro_batch=2, num_tokens=40), attention="eager", frozen=frozen)


def test_states_of_all_tokens_are_kept():
    short, long = (predicted_step(build_model(MAMBA), Batch(micro_batch=1, num_tokens=count)) for count in (100, 200))
    channels, size, layers = 192, 8, 3
    states = 100 * channels * size * (4 + 2) * layers  # in float32, and as the product takes them
    assert long.forward_live - short.forward_live > states


def test_what_cannot_be_is_refused():
    for config, changes, words in (
        (MAMBA, {"use_mambapy": True}, "use_mambapy"),
        (JAMBA, {"attn_layer_offset": 3}, "attn_layer_offset"),
        (JAMBA, {"expert_layer_offset": 2}, "expert_layer_period"),
        (JAMBA, {"mamba_dt_rank": "all"}, "mamba_dt_rank"),
    ):
        with pytest.raises(InputError, match=words):
            build_model({**config, **changes})
