"""Gemma 3n against transformers: AltUp's versions of the hidden states, sparse MLPs, LAuReL, shared keys and values."""

import pytest

pytest.importorskip("transformers")


from family_checks import (
    assert_autocast_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.lora_targets import READ_WEIGHT

BATCH = Batch(micro_batch=2, num_tokens=150)
OWN = {
    "model_type": "gemma3n_text",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 12,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 100,
    "laurel_rank": 8,
    "num_kv_shared_layers": 0,
    "sliding_window": 512,
}
SHARED = {**OWN, "num_hidden_layers": 15, "num_kv_shared_layers": 5}
WINDOWS = {**SHARED, "sliding_window": 64}
DENSE = {**OWN, "activation_sparsity_pattern": [0.0] * 12, "intermediate_size": [160] * 6 + [224] * 6}
PLAIN = {**DENSE, "altup_num_inputs": 3, "altup_correct_scale": False}
CONFIGS = {"own keys": OWN, "shared": SHARED, "windows": WINDOWS, "dense": DENSE, "plain": PLAIN}
EXACT = 0.001
"""What is left are integers of a few bytes a token (positions, shifted labels)."""


@pytest.mark.parametrize("name", ["shared", "plain"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(name, checkpoints):
    assert_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH), checkpoints=checkpoints, tolerance=EXACT)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
def test_eager_attention_keeps_and_peaks_as_in_transformers(checkpoints):
    options = {"attention": "eager", "checkpoints": checkpoints}
    assert_step_matches({**SHARED, "attention_dropout": 0.1}, BATCH, text_inputs(BATCH), tolerance=EXACT, **options)


@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_is_frozen_keeps_nothing(checkpoints):
    frozen = ["model.embed_tokens", "model.per_layer", "model.altup"]
    assert_step_matches(SHARED, BATCH, text_inputs(BATCH), frozen=frozen, checkpoints=checkpoints, tolerance=EXACT)


@pytest.mark.sweep
def test_autocast_multiplies_in_16_bits_and_keeps_the_rest_in_float32():
    assert_autocast_step_matches(SHARED, BATCH, text_inputs(BATCH))


def test_sizes_and_sparsities_are_listed_for_every_layer():
    with pytest.raises(InputError, match=r"intermediate_size is .*a positive integer, or a list of 12"):
        build_model({**OWN, "intermediate_size": [160] * 11})
    with pytest.raises(InputError, match=r"activation_sparsity_pattern is .*a list of 12 numbers"):
        build_model({**OWN, "activation_sparsity_pattern": [0.95] * 11})


def test_the_active_version_is_one_that_there_is():
    with pytest.raises(InputError, match="altup_active_idx is 4; the place of one of 4 versions"):
        build_model({**OWN, "altup_active_idx": 4})


def test_a_layer_that_reuses_keys_has_a_layer_of_its_type_before_it():
    with pytest.raises(InputError, match="num_kv_shared_layers is 11"):
        build_model({**SHARED, "num_kv_shared_layers": 11})


def test_weights_that_are_clamped_in_training_stay_in_16_bit_and_those_not_called_have_no_adapters():
    recipe = Recipe(method=Method.QLORA, zero_stage=None, micro_batch=1, lora_exclude=READ_WEIGHT)
    names = {entry.name: entry.parameter for entry in prepared_model(OWN, recipe).parameters()}
    altup = "model.layers.0.altup."
    assert names[f"{altup}correction_coefs.weight"].stored_bytes is None
    assert names[f"{altup}prediction_coefs.base_layer.weight"].stored_bytes is None
    assert names[f"{altup}modality_router.base_layer.weight"].stored_bytes is not None
