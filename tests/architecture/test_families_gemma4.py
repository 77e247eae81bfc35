"""Gemma 4 against transformers: two widths of heads, shared keys and values, parts of an embedding for each layer, and
experts beside the MLP."""

import pytest

pytest.importorskip("transformers")

from family_checks import assert_parameters_and_linears_match, assert_step_matches, text_inputs
from tape_probe import predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

BATCH = Batch(micro_batch=2, num_tokens=150)
DENSE = {
    "model_type": "gemma4_text",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 12,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 512,
}
PER_LAYER = {**DENSE, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 100}
SHARED = {**PER_LAYER, "num_hidden_layers": 15, "num_kv_shared_layers": 8, "use_double_wide_mlp": True}
SHARED |= {"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3}
EQUAL = {**DENSE, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 30.0}
EXPERTS = {**EQUAL, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48}
CONFIGS = {"dense": DENSE, "parts": PER_LAYER, "shared": SHARED, "keys as values": EQUAL, "experts": EXPERTS}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(name):
    assert_parameters_and_linears_match(CONFIGS[name])


@pytest.mark.one_in(5)
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_keeps_and_peaks_as_in_transformers(name, checkpoints):
    assert_step_matches(CONFIGS[name], BATCH, text_inputs(BATCH), checkpoints=checkpoints, tolerance=0.003)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "options", [{}, {"checkpoints": True}, {"attention": "eager"}], ids=["", "checkpoints", "eager"]
)
def test_windows_shorter_than_the_sequence_build_masks_for_their_layers(options):
    assert_step_matches({**SHARED, "sliding_window": 64}, BATCH, text_inputs(BATCH), tolerance=0.003, **options)


def test_a_layer_that_reuses_keys_has_a_layer_of_its_type_before_it():
    with pytest.raises(InputError, match="num_kv_shared_layers is 11"):
        build_model({**SHARED, "num_kv_shared_layers": 11})


def test_encoders_and_other_kinds_of_layers_are_refused():
    with pytest.raises(InputError, match="use_bidirectional_attention is all"):
        build_model({**DENSE, "use_bidirectional_attention": "all"})
    with pytest.raises(InputError, match="names out of full_attention and sliding_attention"):
        build_model({**DENSE, "layer_types": ["linear_attention"] * 12})


def test_heads_that_a_file_lists_by_layer_are_read():
    listed = {**DENSE, "per_layer_config": {"05": {"head_dim": 48}, "11": {"head_dim": 48, "num_key_value_heads": 1}}}
    sizes = {entry.name: entry.parameter.shape for entry in build_model(listed).parameters()}
    assert sizes["model.layers.5.self_attn.k_proj.weight"] == (2 * 48, 96)
    assert sizes["model.layers.11.self_attn.k_proj.weight"] == (1 * 48, 96)
    assert sizes["model.layers.4.self_attn.k_proj.weight"] == (2 * 32, 96)


def test_flash_attention_is_refused_for_heads_wider_than_it_takes():
    with pytest.raises(InputError, match="those of this model are 512 wide"):
        predicted_step({**DENSE, "global_head_dim": 512}, BATCH, implementation="flash_attention_2")
