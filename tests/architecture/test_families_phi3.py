import pytest

from model_table import assert_counts_match_the_table, packaged_config
from text_steps import assert_parameters_match, assert_step

PHI3 = packaged_config("phi-3-mini", num_hidden_layers=3, vocab_size=8192, pad_token_id=0)
PARTIAL = {key: value for key, value in PHI3.items() if key != "rope_scaling"} | {"partial_rotary_factor": 0.75}
GROUPED = {**PHI3, "num_key_value_heads": 8, "sliding_window": 128, "resid_pdrop": 0.1}
ALTERED = {
    "partial rotary": PARTIAL,
    "grouped heads, window, dropout": GROUPED,
    "tied, narrow": {**PHI3, "tie_word_embeddings": True, "intermediate_size": 512, "num_hidden_layers": 2},
}


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("phi-3-mini")


@pytest.mark.parametrize("config", [PHI3, *ALTERED.values()], ids=["published", *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [PHI3, PARTIAL, GROUPED], ids=["full rotary", "partial rotary", "grouped"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_frozen_embeddings_keep_what_transformers_keeps(checkpoints):
    assert_step(PHI3, frozen=["model.embed_tokens", "lm_head"], checkpoints=checkpoints)
