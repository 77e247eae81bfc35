"""CTRL against transformers, under autocast: else the table of positions changes its type as the model runs."""

import pytest

from text_steps import BATCH

CTRL = {
    "model_type": "ctrl",
    "vocab_size": 2000,
    "n_positions": 512,
    "n_embd": 256,
    "dff": 512,
    "n_layer": 4,
    "n_head": 4,
}
UNTIED = {**CTRL, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "tie_word_embeddings": False}
EACH = pytest.mark.parametrize("config", [CTRL, UNTIED], ids=["as published", "untied, without dropout"])


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    pytest.importorskip("transformers")
    from family_checks import assert_parameters_and_linears_match

    assert_parameters_and_linears_match(config)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention):
    pytest.importorskip("transformers")
    from family_checks import assert_autocast_step_matches, text_inputs

    assert_autocast_step_matches(config, BATCH, text_inputs(BATCH), attention=attention)
