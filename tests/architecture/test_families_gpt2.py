import pytest

from model_table import assert_counts_match_the_table, packaged_config
from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.modules import Conv1D
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.units import DType

# The vocabulary is wide enough for the logits to make the forward's peak under checkpointing: before them, eager layers
# hold their attention weights to their end, which the tape does not follow and which no peak of a step shows.
GPT2 = packaged_config("gpt2", n_layer=4, vocab_size=16384)
NO_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
ALTERED = {
    "untied, narrow MLP": {**GPT2, "tie_word_embeddings": False, "n_inner": 512, "n_positions": 512},
    "wide, few heads": {**GPT2, "n_embd": 1024, "n_head": 8, "n_layer": 2, "activation_function": "relu"},
}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("gpt2")


SW3 = {"model_type": "gpt-sw3", "n_embd": 256, "n_layer": 3, "n_head": 4, "vocab_size": 64000}


BIG_CODE = {"model_type": "gpt_bigcode", "vocab_size": 16384, "n_embd": 512, "n_layer": 4, "n_head": 8}
BIG_CODES = {
    "one head of keys": BIG_CODE,
    "as many heads of keys, untied": {**BIG_CODE, "multi_query": False, "n_inner": 1024, "tie_word_embeddings": False},
}
ALL = {"published": GPT2, "gpt-sw3": SW3, **ALTERED, **BIG_CODES}


@pytest.mark.parametrize("config", ALL.values(), ids=ALL)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        # With dropout in the attention sdpa takes another kernel on CPU than on CUDA.
        ({"attn_pdrop": 0.0}, "sdpa"),
        (NO_DROPOUT, "sdpa"),
        (NO_DROPOUT, "eager"),
        ({}, "eager"),
    ],
    ids=["dropout sdpa", "sdpa", "eager", "dropout eager"],
)
def test_a_step_keeps_and_peaks_as_in_transformers(changes, attention, checkpoints):
    assert_step({**GPT2, **changes}, attention=attention, checkpoints=checkpoints)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("config", BIG_CODES.values(), ids=BIG_CODES)
def test_a_step_of_starcoder_keeps_and_peaks_as_in_transformers(config, checkpoints, attention):
    assert_step({**config, **(NO_DROPOUT if attention == "sdpa" else {})}, attention=attention, checkpoints=checkpoints)


def test_starcoder_that_looks_at_an_encoder_is_refused():
    with pytest.raises(InputError, match="add_cross_attention"):
        build_model({**BIG_CODE, "add_cross_attention": True})


@pytest.mark.parametrize("checkpoints", [False, True])
def test_frozen_embeddings_keep_what_transformers_keeps(checkpoints):
    frozen = ["transformer.wte", "transformer.wpe", "lm_head"]
    assert_step({**GPT2, **NO_DROPOUT}, frozen=frozen, checkpoints=checkpoints)


@pytest.mark.parametrize("key", ["add_cross_attention", "reorder_and_upcast_attn"])
def test_variants_that_compute_something_else_are_refused(key):
    with pytest.raises(InputError, match=key):
        build_model({**GPT2, key: True})


def test_under_zero_3_a_frozen_projection_keeps_no_input():
    """Its ``addmm`` is not the ``F.linear`` that DeepSpeed replaces by one which keeps it."""
    projection = Conv1D(8, 24)
    projection.weight.requires_grad = False
    assert projection.weight.shape == (8, 24)
    tape = Tape(keeps_linear_inputs=True)
    with tape.section("product"):
        x = tape.tensor((1, 16, 8), DType.BFLOAT16)
        result = projection(x)
        before = tape.total
        num_bytes = x.num_bytes
        del x
        assert tape.total == before - num_bytes
    assert result.shape == (1, 16, 24)
