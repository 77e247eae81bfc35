"""BioGPT and XGLM: OPT's layers with embeddings that are scaled, and positions that are learned or constants."""

import pytest

from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.errors import InputError

BIOGPT = {"model_type": "biogpt", "vocab_size": 2048, "hidden_size": 512, "num_hidden_layers": 4}
BIOGPT |= {"num_attention_heads": 8, "intermediate_size": 1024}
XGLM = {"model_type": "xglm", "vocab_size": 2048, "d_model": 512, "num_layers": 4, "attention_heads": 8}
XGLM |= {"ffn_dim": 1024}
CONFIGS = {
    "biogpt": BIOGPT,
    "biogpt with more dropout, untied": {**BIOGPT, "activation_dropout": 0.1, "tie_word_embeddings": False},
    "xglm": XGLM,
    "xglm with other dropout, untied": {
        **XGLM,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.1,
        "tie_word_embeddings": False,
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention="eager")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@EACH
def test_a_step_with_eager_attention_keeps_and_peaks_as_in_transformers(config, checkpoints):
    assert_step(config, attention="eager", checkpoints=checkpoints)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_step_with_sdpa_keeps_and_peaks_as_in_transformers(checkpoints):
    # With dropout in the attention sdpa takes another kernel on CPU than on CUDA.
    assert_step({**BIOGPT, "attention_probs_dropout_prob": 0.0}, checkpoints=checkpoints)


def test_positions_end_where_the_table_does_and_constants_do_not():
    with pytest.raises(InputError, match="learned positions for 128 tokens"):
        predicted_step({**BIOGPT, "max_position_embeddings": 128}, BATCH)
    predicted_step({**XGLM, "max_position_embeddings": 128}, BATCH, implementation="eager")


def test_attention_to_an_encoder_is_refused():
    with pytest.raises(InputError, match="add_cross_attention"):
        build_model({**XGLM, "add_cross_attention": True})
