"""Latent attention against transformers: DeepSeek-V2, V3, A.X-K1, GLM-4.7-Flash, Youtu-LLM, MiniCPM 3 and Mistral 4."""

import pytest

pytest.importorskip("transformers")

from family_checks import (
    assert_checkpointed_step_matches,
    assert_parameters_and_linears_match,
    assert_step_matches,
    text_inputs,
)
from model_table import assert_counts_match_the_table
from tape_probe import predicted_step
from vlmplan.architecture import ops
from vlmplan.architecture.families import build_model
from vlmplan.architecture.families.gpt_oss import LogitRouter
from vlmplan.architecture.families.group_router import GreedyRouter, GroupRouter, SoftmaxGroupRouter
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.errors import InputError
from vlmplan.units import DType

LATENT = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 48,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 48,
}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_group": 2, "topk_group": 1}
DEEPSEEK = {"model_type": "deepseek_v3", **LATENT, **EXPERTS, "first_k_dense_replace": 1}
DEEPSEEK_V2 = {**DEEPSEEK, "model_type": "deepseek_v2"}
LIMITED = {**DEEPSEEK_V2, "topk_method": "group_limited_greedy", "q_lora_rank": None, "mlp_bias": True}
NARROW = {**DEEPSEEK, "v_head_dim": 24, "q_lora_rank": None, "rope_interleave": False, "first_k_dense_replace": 0}
CONFIGS = {
    "deepseek-v2": DEEPSEEK_V2,
    "the best experts of the best groups": LIMITED,
    "deepseek-v3": DEEPSEEK,
    "a.x-k1": {"model_type": "axk1", **LATENT, **EXPERTS},
    "a.x-k1 with experts in every other layer": {
        "model_type": "axk1",
        **LATENT,
        **EXPERTS,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 2,
    },
    "glm-4.7-flash": {"model_type": "glm4_moe_lite", **LATENT, **EXPERTS},
    "dense layers by name": {
        "model_type": "glm4_moe_lite",
        **LATENT,
        **EXPERTS,
        "mlp_layer_types": ["dense", "sparse"] * 2,
    },
    "youtu": {"model_type": "youtu", **LATENT, "bos_token_id": None, "eos_token_id": None},
    "minicpm3": {"model_type": "minicpm3", **LATENT, "attention_bias": True, "mlp_bias": True},
}
MISTRAL4 = {
    "model_type": "mistral3",
    "text_config": {"model_type": "mistral4", **LATENT, **EXPERTS},
    "vision_config": {
        "model_type": "pixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
    },
    "tie_word_embeddings": False,
}
BATCH = Batch(micro_batch=2, num_tokens=150)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("config", [*CONFIGS.values(), NARROW, MISTRAL4], ids=[*CONFIGS, "narrow values", "mistral 4"])
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_and_linears_match(config)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [*CONFIGS.values(), MISTRAL4], ids=[*CONFIGS, "mistral 4"])
def test_a_step_keeps_and_peaks_as_in_transformers(config, attention):
    assert_step_matches(config, BATCH, text_inputs(BATCH), attention=attention, tolerance=0.001)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("config", [*CONFIGS.values(), NARROW, MISTRAL4], ids=[*CONFIGS, "narrow values", "mistral 4"])
def test_a_step_with_checkpoints_keeps_and_peaks_as_in_transformers(config):
    # Eager: where values have another width, sdpa on CPU has no kernel like those of a GPU.
    attention = "eager" if config is NARROW else "sdpa"
    assert_checkpointed_step_matches(config, BATCH, text_inputs(BATCH), attention=attention)


@pytest.mark.parametrize(
    ("router", "scores"),
    [
        (GreedyRouter(8, 16, 2, num_groups=None), DType.FLOAT32),  # DeepSeek-V2 asks for float32
        (GreedyRouter(8, 16, 2, num_groups=2), DType.FLOAT32),
        (SoftmaxGroupRouter(8, 16, 2, num_groups=2, normalizes=True), DType.FLOAT32),  # Mistral 4 asks for nothing
        (GroupRouter(8, 16, 2, num_groups=2, normalizes=True), DType.BFLOAT16),  # a sigmoid
        (LogitRouter(8, 16, 2), DType.BFLOAT16),  # asks for the type of the logits
    ],
)
def test_autocast_has_the_softmax_of_a_router_in_float32_unless_another_type_is_asked_for(router, scores):
    tape = Tape(autocast=DType.BFLOAT16)
    with tape.section("router"):
        logits, picked, _ = router(tape.tensor((10, 16), DType.BFLOAT16))
    assert (logits.dtype, picked.dtype) == (DType.BFLOAT16, scores)


def test_without_autocast_a_softmax_has_the_type_that_it_gets():
    tape = Tape()
    with tape.section("router"):
        narrow = tape.tensor((10, 8), DType.BFLOAT16)
        assert (ops.softmax(narrow).dtype, ops.softmax(narrow, DType.FLOAT32).dtype) == (DType.BFLOAT16, DType.FLOAT32)


def test_values_narrower_than_keys_keep_and_peak_as_in_transformers():
    narrow = {**NARROW, "attention_bias": True}
    assert_step_matches(narrow, BATCH, text_inputs(BATCH), attention="eager", tolerance=0.001)


def test_flash_attention_2_pads_narrow_values_and_keeps_them_padded():
    layers, tokens, heads, key_width, value_width, weight_bytes = 4, 2 * 150, 4, 48, 24, 2
    own, padded = (
        predicted_step(NARROW, BATCH, implementation=name).forward_live for name in ("sdpa", "flash_attention_2")
    )
    # Values and result as wide as keys; against values inside of what they are cut from, and a narrow result.
    own_widths, padded_widths = (32 + value_width) + value_width, key_width + key_width
    assert padded - own == layers * tokens * heads * (padded_widths - own_widths) * weight_bytes


def test_grouped_heads_are_refused():
    with pytest.raises(InputError, match="num_key_value_heads is 2"):
        build_model({**DEEPSEEK, "num_key_value_heads": 2})


def test_another_way_to_choose_experts_is_refused():
    with pytest.raises(InputError, match='topk_method is "noaux_tc"; greedy or group_limited_greedy is needed'):
        build_model({**DEEPSEEK_V2, "topk_method": "noaux_tc"})


def test_counts_are_those_of_the_published_checkpoint():
    assert_counts_match_the_table("deepseek-v2-lite")


def test_other_kinds_of_layers_are_refused():
    with pytest.raises(InputError, match="names out of dense and sparse"):
        build_model({**CONFIGS["glm-4.7-flash"], "mlp_layer_types": ["moe"] * 4})
