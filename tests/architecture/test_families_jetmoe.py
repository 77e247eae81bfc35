"""JetMoE against transformers."""

import pytest

from text_steps import assert_step

JETMOE = {
    "model_type": "jetmoe",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "num_key_value_heads": 2,
    "kv_channels": 64,
    "intermediate_size": 384,
    "num_local_experts": 4,
}
UNEVEN = {**JETMOE, "num_local_experts": 5, "num_experts_per_tok": 3, "tie_word_embeddings": False}
EACH = pytest.mark.parametrize(
    "config", [JETMOE, UNEVEN], ids=["as published", "rows that experts cannot share evenly"]
)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    pytest.importorskip("transformers")
    from family_checks import assert_parameters_and_linears_match

    assert_parameters_and_linears_match(config)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention):
    assert_step(config, attention=attention)
