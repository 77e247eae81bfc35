"""Families whose attention is their own drop its weights out as transformers does."""

import pytest

from text_steps import assert_step

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
CONFIGS = {
    name: {"model_type": name, **SIZES, **changes, "attention_dropout": 0.1}
    for name, changes in {
        "gpt_oss": {"num_local_experts": 4, **EXPERTS},
        "deepseek_v3": {
            **EXPERTS,
            "num_key_value_heads": 8,
            "head_dim": 16,
            "kv_lora_rank": 48,
            "q_lora_rank": 64,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "n_routed_experts": 8,
            "n_group": 2,
            "topk_group": 1,
        },
        "qwen3_5_text": {
            "layer_types": ["full_attention"] * 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
        },
        "afmoe": {**EXPERTS, "num_experts": 8, "sliding_window": 64},
    }.items()
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", CONFIGS)
def test_eager_attention_drops_out_what_transformers_drops_out(name):
    assert_step(CONFIGS[name], attention="eager")


@pytest.mark.parametrize("alias", ["pixtral-12b", "paligemma-3b"])
def test_eager_attention_of_a_tower_drops_out_what_transformers_drops_out(alias):
    pytest.importorskip("transformers")
    from family_checks import assert_step_matches
    from image_batches import cut_config, image_step, packaged_preprocessor

    config = cut_config(alias, vision={"attention_dropout": 0.1})
    step = image_step(config, packaged_preprocessor(alias), (500, 400))
    assert_step_matches(step.config, step.batch, step.inputs, step.floats, attention="eager", tolerance=0.001)
