"""Known attention and a mixture of experts (Granite 3, OLMoE, ERNIE 4.5, Laguna, ...) against transformers."""

import pytest

from tape_probe import predicted_step
from text_steps import assert_checkpointed_step, assert_parameters_match, assert_step
from vlmplan.architecture.model import Batch
from vlmplan.errors import InputError

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GRANITE = {"model_type": "granitemoe", **SIZES, "num_local_experts": 8, "num_experts_per_tok": 2}
SHARED = {**GRANITE, "model_type": "granitemoeshared", "shared_intermediate_size": 80}
OLMOE = {"model_type": "olmoe", **SIZES, "num_experts": 8, "num_experts_per_tok": 2}
DOTS = {
    "model_type": "dots1",
    **SIZES,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
DENSE = ("intermediate_size", "first_k_dense_replace")
SOLAR = {**{key: value for key, value in DOTS.items() if key not in DENSE}, "model_type": "solar_open"}
EXAONE = {
    "model_type": "exaone_moe",
    **SIZES,
    "sliding_window": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "moe_intermediate_size": 48,
}
KOLIBRI = {
    "model_type": "kolibri1",
    **{key: value for key, value in SIZES.items() if key != "intermediate_size"},
    "num_hidden_layers": 5,
    "head_dim": 16,
    "sliding_window": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
FLEX = {"model_type": "flex_olmo", **SIZES, "num_experts": 8, "num_experts_per_tok": 2}
MINIMAX = {
    "model_type": "minimax_m2",
    **SIZES,
    "head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN2 = {
    "model_type": "qwen2_moe",
    **SIZES,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
    "mlp_only_layers": [1],
}
ERNIE = {
    "model_type": "ernie4_5_moe",
    **SIZES,
    "hidden_size": 512,  # a router keeps integers of a few bytes a token
    "moe_num_experts": 8,
    "moe_k": 2,
    "moe_intermediate_size": 48,
    "moe_num_shared_experts": 2,
}
MELLUM = {
    "model_type": "mellum",
    **SIZES,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
HUNYUAN = {
    "model_type": "hunyuan_v1_moe",
    **SIZES,
    "hidden_size": 512,  # a router keeps integers of a few bytes a token
    "head_dim": 16,
    "num_experts": 8,
    "moe_topk": 2,
}
HY = {
    "model_type": "hy_v3",
    **SIZES,
    "hidden_size": 512,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
AFMOE = {
    "model_type": "afmoe",
    **SIZES,
    "hidden_size": 512,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "sliding_window": 64,
}
COHERE = {
    "model_type": "cohere2_moe",
    **SIZES,
    "hidden_size": 512,
    "head_dim": 16,
    "num_experts": 8,
    "sliding_window": 64,
}
LAGUNA = {
    "model_type": "laguna",
    **SIZES,
    "hidden_size": 512,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 40,
}
CONFIGS = {
    "laguna": LAGUNA,
    "laguna with windows, numbers of heads, gates of elements, capped routers": {
        **LAGUNA,
        "gating": "per-element",
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "sliding_window": 64,
        "num_attention_heads_per_layer": [4, 8, 8, 4],
        "moe_router_logit_softcapping": 3.0,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "afmoe": AFMOE,
    "afmoe with scaled embeddings and biases, two dense layers, tied": {
        **AFMOE,
        "mup_enabled": True,
        "num_dense_layers": 2,
        "num_shared_experts": 1,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "cohere2_moe": COHERE,
    "cohere2_moe with dense layers, shared experts, other norms": {
        **COHERE,
        "first_k_dense_replace": 2,
        "num_shared_experts": 2,
        "prefix_dense_intermediate_size": 80,
        "expert_selection_fn": "sigmoid",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    "cohere2_moe with what experts give summed": {
        **COHERE,
        "num_shared_experts": 1,
        "shared_expert_combination_strategy": "sum",
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": False,
        "attention_bias": True,
    },
    "hunyuan_v1_moe": HUNYUAN,
    "hunyuan_v1_moe with biases, experts by layer": {
        **HUNYUAN,
        "attention_bias": True,
        "moe_topk": [2] * 4,
    },
    "hy_v3": HY,
    "hy_v3 with biases, whose layers are named": {
        **HY,
        "attention_bias": True,
        "mlp_bias": True,
        "enable_moe_fp32_combine": False,
        "num_shared_experts": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
    },
    "granitemoe": GRANITE,
    "granitemoe with biases, tied": {**GRANITE, "attention_bias": True, "tie_word_embeddings": True},
    "granitemoeshared": SHARED,
    "granitemoeshared without what is shared": {**SHARED, "shared_intermediate_size": 0},
    "olmoe": OLMOE,
    "olmoe with normed scores": {**OLMOE, "norm_topk_prob": True, "attention_bias": True},
    "dots1": DOTS,
    "dots1 with windows": {**DOTS, "max_window_layers": 2, "sliding_window": 64, "attention_bias": True},
    "solar_open": SOLAR,
    "solar_open with biases, tied": {**SOLAR, "attention_bias": True, "tie_word_embeddings": True},
    "exaone_moe": EXAONE,
    "exaone_moe, whose layers are named": {
        **EXAONE,
        "layer_types": ["full_attention"] * 4,
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
    },
    "kolibri1": KOLIBRI,
    "kolibri1 with normed scores, whose layers all see everything": {
        **KOLIBRI,
        "norm_topk_prob": True,
        "layer_types": ["full_attention"] * 5,
    },
    "flex_olmo": FLEX,
    "flex_olmo with normed scores": {**FLEX, "norm_topk_prob": True, "attention_bias": True},
    "minimax_m2": MINIMAX,
    "minimax_m2, part of each head rotated": {**MINIMAX, "rotary_dim": 8, "tie_word_embeddings": True},
    "ernie4_5_moe": ERNIE,
    "ernie4_5_moe with biases, experts in one layer alone": {
        **ERNIE,
        "use_bias": True,
        "moe_num_shared_experts": 0,
        "moe_layer_interval": 2,
        "moe_layer_end_index": 2,
        "tie_word_embeddings": False,
    },
    "mellum": MELLUM,
    "mellum with windows, a layer without experts": {
        **MELLUM,
        "sliding_window": 64,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
        "attention_bias": True,
        "norm_topk_prob": False,
    },
    "qwen2_moe": QWEN2,
    "qwen2_moe with windows": {
        **QWEN2,
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 2,
        "qkv_bias": False,
        "norm_topk_prob": True,
    },
}
BATCH = Batch(micro_batch=2, num_tokens=150)
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@EACH
def test_parameters_and_linears_have_the_names_sizes_and_order_of_transformers(config):
    assert_parameters_match(config)


@pytest.mark.one_in(3)
@EACH
def test_a_step_keeps_and_peaks_as_in_transformers(config):
    assert_step(config, BATCH, tolerance=0.0015, backward_tolerance=0.0001)


@pytest.mark.one_in(3)
@EACH
def test_a_checkpointed_step_peaks_as_in_transformers(config):
    assert_checkpointed_step(config, BATCH)


@pytest.mark.parametrize("key", ["expert_selection_fn", "shared_expert_combination_strategy"])
def test_other_ways_of_cohere_to_choose_and_to_add_are_refused(key):
    with pytest.raises(InputError, match=f"{key}.*other"):
        predicted_step({**COHERE, key: "other"}, BATCH)


def test_layers_of_different_numbers_of_experts_are_refused():
    with pytest.raises(InputError, match="moe_topk"):
        predicted_step({**HUNYUAN, "moe_topk": [2, 2, 1, 1]}, BATCH)


def test_numbers_of_heads_are_for_each_layer():
    with pytest.raises(InputError, match=r"num_attention_heads_per_layer is \[4, 4\]; a number for each of 4 layers"):
        predicted_step({**LAGUNA, "num_attention_heads_per_layer": [4, 4]}, BATCH)


def test_clipped_queries_are_refused():
    with pytest.raises(InputError, match="clip_qkv"):
        predicted_step({**OLMOE, "clip_qkv": 8.0}, BATCH)
