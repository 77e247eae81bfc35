"""Types that transformers 5.24 adds and makes of older classes: EXAONE 3 (Llama), Sarvam 105B (DeepSeek-V3) and 30B
(GLM-4.5)."""

import pytest

from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.families import build_model
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS

SIZES = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 1000}
EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "first_k_dense_replace": 1}
LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 48}
CONFIGS = {
    "exaone": {"model_type": "exaone", **SIZES, "num_key_value_heads": 2, "intermediate_size": 384},
    "exaone by its own names": {
        "model_type": "exaone",
        "hidden_size": 256,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 384,
        "activation_function": "silu",
        "vocab_size": 1000,
        "tie_word_embeddings": True,
    },
    "sarvam_mla": {"model_type": "sarvam_mla", **SIZES, **EXPERTS, **LATENT, "intermediate_size": 384},
    "sarvam_moe": {
        "model_type": "sarvam_moe",
        **SIZES,
        **EXPERTS,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 384,
    },
    "sarvam_moe by its own names": {
        "model_type": "sarvam_moe",
        **SIZES,
        "num_experts": 8,
        "num_shared_experts": 2,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 96,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "intermediate_size": 384,
        "use_qkv_bias": True,
        "use_qk_norm": False,
    },
}
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
KNOWN = pytest.mark.skipif(
    bool(PLANNED_TRANSFORMERS.unknown_types), reason="the transformers that is installed does not have these types"
)
BY_DEFAULT = [{"model_type": name} for name in ("exaone", "sarvam_mla", "sarvam_moe")]


@KNOWN
@pytest.mark.parametrize("config", [*CONFIGS.values(), *BY_DEFAULT], ids=lambda config: str(len(config)))
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@KNOWN
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config):
    assert_step(config)


@KNOWN
@EACH
def test_a_checkpointed_step_keeps_and_peaks_as_in_transformers(config):
    assert_checkpointed_step(config)


OLDER = {
    "exaone": {},
    "sarvam_mla": {"q_lora_rank": None, "num_key_value_heads": 4},
    "sarvam_moe": {"use_qk_norm": True},
}


def test_every_name_of_a_field_is_read():
    named = {"model_type": "sarvam_moe", **SIZES, "num_key_value_heads": 2, "head_dim": 64}
    by_names = [
        [entry.parameter.numel for entry in build_model({**named, name: 8}).parameters()]
        for name in ("n_routed_experts", "num_experts", "num_local_experts")
    ]
    assert by_names[0] == by_names[1] == by_names[2]


@pytest.mark.parametrize(
    ("name", "older"), [("exaone", "llama"), ("sarvam_mla", "deepseek_v3"), ("sarvam_moe", "glm4_moe")]
)
def test_parameters_are_those_of_the_class_that_the_type_is_made_of(name: str, older: str):
    found, expected = build_model(CONFIGS[name]), build_model({**CONFIGS[name], **OLDER[name], "model_type": older})
    assert [(entry.name, entry.parameter.shape) for entry in found.parameters()] == [
        (entry.name, entry.parameter.shape) for entry in expected.parameters()
    ]
