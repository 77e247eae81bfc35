"""ModernBERT's decoder against transformers."""

import pytest

from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.errors import InputError

BERT = {"model_type": "modernbert-decoder", "vocab_size": 2048, "hidden_size": 512, "num_hidden_layers": 6}
BERT |= {"num_attention_heads": 8, "intermediate_size": 768}
BERT |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
DROPOUTS = {"attention_dropout": 0.1, "embedding_dropout": 0.1, "mlp_dropout": 0.1}
BIASES = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
CONFIGS = {
    "as it is": BERT,
    "windows wider than the text, full attention in every other layer": {
        **BERT,
        "local_attention": 1024,
        "global_attn_every_n_layers": 2,
    },
    "dropout and biases, untied, full attention alone": {
        **BERT,
        **DROPOUTS,
        **BIASES,
        "decoder_bias": False,
        "tie_word_embeddings": False,
        "layer_types": ["full_attention"] * 6,
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    if attention == "sdpa":  # with dropout in the attention it takes another kernel on CPU than on CUDA
        config = {**config, "attention_dropout": 0.0}
    assert_step(config, attention=attention, checkpoints=checkpoints)


def test_a_window_that_is_left_open_is_refused():
    with pytest.raises(InputError, match="local_attention"):
        build_model({**BERT, "local_attention": None})
