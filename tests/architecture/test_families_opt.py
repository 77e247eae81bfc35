import csv

import pytest

from model_table import TABLE, packaged_config
from text_steps import assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.errors import InputError

PUBLISHED = packaged_config("blip2-opt-2.7b")["text_config"]
OPT = {**PUBLISHED, "num_hidden_layers": 3, "vocab_size": 8192}
ALTERED = {
    "350M: norms last, narrow embedding": {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 512},
    "untied, no biases": {**OPT, "tie_word_embeddings": False, "enable_bias": False, "ffn_dim": 512},
    "no final norm": {**OPT, "_remove_final_layer_norm": True, "hidden_size": 512, "word_embed_proj_dim": 512},
}


def test_the_count_is_that_of_the_decoder_in_the_published_blip2():
    with TABLE.open(encoding="utf-8", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["short_name"] == "blip2-opt-2.7b")
    assert sum(entry.parameter.numel for entry in build_model(PUBLISHED).parameters()) == int(row["params_text"])


@pytest.mark.parametrize("config", [OPT, *ALTERED.values()], ids=["2.7b", *ALTERED])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "changes", [{}, {"dropout": 0.0}, ALTERED["350M: norms last, narrow embedding"]], ids=["2.7b", "no dropout", "350m"]
)
def test_a_step_keeps_and_peaks_as_in_transformers(changes, attention, checkpoints):
    assert_step({**OPT, **changes}, attention=attention, checkpoints=checkpoints)


def test_attention_dropout_keeps_a_mask_of_the_scores():
    assert_step({**OPT, "attention_dropout": 0.1}, attention="eager")


@pytest.mark.parametrize("checkpoints", [False, True])
def test_frozen_embeddings_keep_what_transformers_keeps(checkpoints):
    assert_step(OPT, frozen=["model.decoder.embed", "lm_head"], checkpoints=checkpoints)


def test_norms_without_weights_are_refused():
    with pytest.raises(InputError, match="layer_norm_elementwise_affine"):
        build_model({**OPT, "layer_norm_elementwise_affine": False})
