import pytest

from model_table import assert_counts_match_the_table, packaged_config
from tape_probe import predicted_step
from text_steps import BATCH, assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.errors import InputError

# A small vocabulary, so that the layers and not the logits make the peaks.
SMALL = {"num_hidden_layers": 4, "vocab_size": 8192}
GEMMA = {**packaged_config("paligemma-3b")["text_config"], **SMALL}
# Under checkpointing eager layers hold their attention weights to their end, which shows where a wide MLP makes the
# peak of the forward; the peak of the backward, which counts, does not see it.
SLIM_GEMMA = {**GEMMA, "intermediate_size": 4096}
GEMMA_2 = packaged_config("gemma-2-2b", **SMALL)
GEMMA_3 = packaged_config("gemma-3-1b", **{**SMALL, "num_hidden_layers": 7})
LOCAL_GEMMA_3 = packaged_config("gemma-3-1b", **SMALL)
"""Its layers all have a window, so that only their positions are made."""
VAULT = {**GEMMA_2, "model_type": "vaultgemma"}
ALTERED = {
    "gemma untied with biases": {**GEMMA, "tie_word_embeddings": False, "attention_bias": True, "head_dim": 128},
    "gemma with many key heads": {**GEMMA, "num_key_value_heads": 8, "num_hidden_layers": 2, "intermediate_size": 768},
    "gemma2 9b": packaged_config("gemma-2-9b", **SMALL),
    "gemma2 untied with biases": {**GEMMA_2, "tie_word_embeddings": False, "attention_bias": True, "head_dim": 128},
    "gemma2 all layers full": {**GEMMA_2, "layer_types": ["full_attention"] * 4, "num_key_value_heads": 8},
    "gemma3 untied with biases": {**GEMMA_3, "tie_word_embeddings": False, "attention_bias": True, "head_dim": 64},
    "gemma3 every third layer full": {**GEMMA_3, "sliding_window_pattern": 3, "num_key_value_heads": 2},
}


def attention_of(config):
    # Gemma 2 and VaultGemma refuse sdpa when asked for it; transformers' default for them is eager.
    return "eager" if config["model_type"] in ("gemma2", "vaultgemma") else "sdpa"


@pytest.mark.parametrize("alias", ["gemma-2-2b", "gemma-2-9b", "gemma-3-1b"])
def test_counts_are_those_of_the_published_checkpoints(alias):
    assert_counts_match_the_table(alias)


@pytest.mark.parametrize(
    "config",
    [GEMMA, GEMMA_2, GEMMA_3, VAULT, *ALTERED.values()],
    ids=["1", "2", "3", "vault", *ALTERED],
)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config, attention=attention_of(config))


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (GEMMA, "sdpa"),
        (SLIM_GEMMA, "eager"),
        (GEMMA_2, "eager"),
        (VAULT, "eager"),
        (GEMMA_3, "sdpa"),
        (GEMMA_3, "eager"),
        (LOCAL_GEMMA_3, "sdpa"),
    ],
    ids=["1 sdpa", "1 eager", "2 eager", "vault eager", "3 sdpa", "3 eager", "3 without full layers"],
)
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention, checkpoints):
    assert_step(config, attention=attention, checkpoints=checkpoints)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("config", [GEMMA, GEMMA_2, GEMMA_3], ids=["1", "2", "3"])
def test_frozen_embeddings_and_norms_keep_what_transformers_keeps(config, checkpoints):
    frozen = ["model.embed_tokens", "lm_head", "model.norm"]
    frozen += [f"model.layers.{index}.input_layernorm" for index in range(config["num_hidden_layers"])]
    assert_step(config, attention=attention_of(config), checkpoints=checkpoints, frozen=frozen)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_windows_shorter_than_the_sequence_build_masks_for_their_layers(attention, num_kv_heads):
    # One key head is expanded without a copy, two are written out for every query head.
    assert_step({**GEMMA_3, "sliding_window": 128, "num_key_value_heads": num_kv_heads}, attention=attention)


def test_gemma_2_runs_eager_attention_where_sdpa_is_asked_for():
    asked, run = (predicted_step(GEMMA_2, BATCH, implementation=name) for name in ("sdpa", "eager"))
    assert asked.backward_peak == run.backward_peak
    assert predicted_step(GEMMA_2, BATCH, implementation="flash_attention_2").backward_peak < run.backward_peak


def test_only_gemma_2_caps_its_logits():
    assert build_model(GEMMA_2).caps_logits
    assert not build_model({**GEMMA_2, "final_logit_softcapping": None}).caps_logits
    assert not build_model(GEMMA_3).caps_logits


def test_bidirectional_gemma_is_refused():
    with pytest.raises(InputError, match="use_bidirectional_attention"):
        build_model({**GEMMA_3, "use_bidirectional_attention": True})
