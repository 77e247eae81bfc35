"""Small configurations of model types that see and have no family, whose parts fit each other.

transformers' default configurations of many of them do not: the language model has another width than what the images
become. These have a few layers of each part; processors take their own defaults. Those whose image processor needs
torchvision are in ``torchvision_image_models``.
"""

from collections.abc import Mapping
from typing import Any

from image_model_parts import IMAGE, MUSE, ROPE, VIDEO, clip, mrope, qwen3_vision, siglip, text
from torchvision_image_models import TORCHVISION_MODELS

_GLM_IDS = {
    "video_token_id": 8,
    "image_start_token_id": 9,
    "image_end_token_id": 10,
    "video_start_token_id": 11,
    "video_end_token_id": 12,
}


def _minicpmv(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        **IMAGE,
        "video_token_id": 8,
        "insert_layer_id": 3,
        "text_config": text("qwen3_5_text", head_dim=64),
        "vision_config": {"num_hidden_layers": 6, "insert_layer_id": 3, "patch_size": 14, "image_size": 448},
    }


def _got(model_type: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "image_token_index": 7,
        "image_seq_length": 256,
        "text_config": text("qwen2"),
        "vision_config": {"num_hidden_layers": 4, "global_attn_indexes": [1, 3]},
    }


def _chameleon_words() -> dict[str, int]:
    """An image's tokens by the names that they have: their numbers in letters."""
    names = ("IMGIMG" + "".join("ABCDEFGHIJ"[int(digit)] for digit in str(code)) + "Z" for code in range(8192))
    return {"<image>": 7, **{name: 100 + code for code, name in enumerate(names)}}


_MODELS: tuple[Mapping[str, Any], ...] = (
    {
        "model_type": "chameleon",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 3,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
        "vocabulary_map": _chameleon_words(),
        "vq_config": {"base_channels": 64},
    },
    {"model_type": "cosmos3_edge", **IMAGE},
    {
        "model_type": "dots3_note",
        **IMAGE,
        "text_config": text(
            "dots3_note_text",
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=8,
            kv_lora_rank=256,
            n_routed_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=512,
            q_lora_rank=512,
            shared_experts_intermediate_size=512,
            index_n_heads=4,
        ),
        "vision_config": {
            "num_hidden_layers": 3,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "adapter_out_dim": 1024,
            "mlp_layer_types": ["dense", "dense", "sparse"],
        },
        "audio_config": {"num_hidden_layers": 2, "adapter_out_dim": 1024},
    },
    {
        "model_type": "idefics",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "vocab_size": 32000,
        "cross_layer_interval": 2,
        "vision_config": {
            "embed_dim": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
        },
    },
    {
        "model_type": "kosmos-2",
        "text_config": {"model_type": "kosmos_2_text_model", "layers": 3},
        "vision_config": {"model_type": "kosmos_2_vision_model", "num_hidden_layers": 4},
    },
    {
        "model_type": "kosmos-2.5",
        "text_config": {"model_type": "kosmos_2_5_text_model", "layers": 3},
        "vision_config": {"model_type": "kosmos_2_5_vision_model", "num_hidden_layers": 4},
    },
)
IMAGE_MODELS: dict[str, Mapping[str, Any]] = {str(one["model_type"]): one for one in (*_MODELS, *TORCHVISION_MODELS)}
"""By model_type."""
_DESCRIBED: tuple[Mapping[str, Any], ...] = (
    {
        "model_type": "qwen4_exp",
        **IMAGE,
        **VIDEO,
        "text_config": {
            "model_type": "qwen4_exp_text",
            "num_hidden_layers": 4,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "indexer_n_heads": 16,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 256,
            "indexer_budget": 2048,
            "indexer_compress_ratio": 16,
            "ngram_vocab_size_base": 20_000,
            "vocab_size": 32000,
        },
        "vision_config": {**qwen3_vision(), "out_hidden_size": 2048},
    },
    {
        "model_type": "cosmos3_omni",
        **IMAGE,
        **VIDEO,
        "text_config": text("qwen3_vl_text", head_dim=64, rope_parameters=mrope(12, 10, 10)),
        "vision_config": qwen3_vision(model_type="qwen3_vl_vision", deepstack_visual_indexes=[1, 2]),
    },
    {
        "model_type": "glm_ocr",
        **IMAGE,
        **_GLM_IDS,
        "text_config": text("glm_ocr_text", head_dim=64, rope_parameters=mrope(8, 12, 12)),
        "vision_config": {"depth": 4, "out_hidden_size": 1024},
    },
    {
        "model_type": "lighton_ocr",
        **IMAGE,
        "text_config": text("qwen3", head_dim=128),
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 6,
            "num_attention_heads": 16,
            "head_dim": 64,
            "image_size": 1540,
            "patch_size": 14,
            "hidden_act": "silu",
        },
    },
    {
        "model_type": "paddleocr_vl",
        **IMAGE,
        **VIDEO,
        "text_config": text(
            "paddleocr_vl_text", num_key_value_heads=2, head_dim=128, rope_parameters=mrope(16, 24, 24)
        ),
        "vision_config": {"num_hidden_layers": 6},
    },
    {
        "model_type": "aya_vision",
        "image_token_index": 7,
        "text_config": text("cohere2", sliding_window=512),
        "vision_config": siglip(side=364, patch=14),
    },
    {
        "model_type": "cohere2_vision",
        **IMAGE,
        "alignment_intermediate_size": 4096,
        "text_config": text("cohere2", sliding_window=512),
        "vision_config": siglip(side=512),
    },
    {
        "model_type": "ernie4_5_vl_moe",
        **IMAGE,
        "image_start_token_id": 9,
        "image_end_token_id": 10,
        "video_start_token_id": 11,
        "video_end_token_id": 12,
        "video_token_id": 8,
        "text_config": text(
            "ernie4_5_vl_moe_text",
            num_hidden_layers=3,
            num_attention_heads=8,
            moe_intermediate_size=[512, 256],
            moe_num_experts=8,
            moe_k=2,
            rope_parameters=mrope(22, 22, 20),
        ),
        "vision_config": {"depth": 6, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096},
    },
    {
        "model_type": "exaone4_5",
        **IMAGE,
        "video_token_id": 8,
        "text_config": text("exaone4"),
        "vision_config": {
            "depth": 6,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_heads": 16,
            "num_key_value_heads": 8,
            "out_hidden_size": 1024,
            "fullatt_block_indexes": [2, 5],
        },
    },
    {
        "model_type": "lfm3_vl",
        **IMAGE,
        **VIDEO,
    },
    {
        "model_type": "vipllava",
        "image_token_index": 7,
        "vision_feature_layers": [-2, -3, -4, 1],
        "text_config": text("llama"),
        "vision_config": clip(336),
    },
    {
        "model_type": "qianfan_ocr",
        **IMAGE,
        "text_config": text("qwen3", head_dim=64),
        "vision_config": {"num_hidden_layers": 4},
    },
    {
        "model_type": "llava_next_video",
        "image_token_index": 7,
        "video_token_index": 8,
        "text_config": text("llama"),
        "vision_config": clip(336),
    },
    {
        "model_type": "glmga",
        **IMAGE,
        **_GLM_IDS,
        "text_config": text("glm4v_text", rope_parameters=mrope(8, 12, 12)),
        "vision_config": {
            "model_type": "glm4v_vision",
            "depth": 4,
            "hidden_size": 1024,
            "num_heads": 16,
            "out_hidden_size": 1024,
            "intermediate_size": 2816,
        },
    },
    {
        "model_type": "hyperclovax_vision_v2",
        **IMAGE,
        "video_token_id": 8,
        "text_config": text("hyperclovax", head_dim=64),
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            "depth": 4,
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_heads": 16,
            "out_hidden_size": 1024,
            "fullatt_block_indexes": [1, 3],
        },
    },
    _minicpmv("minicpm_ocr"),
    _minicpmv("minicpmv4_7"),
    {"model_type": "deepseek_vl", **IMAGE, "text_config": text("llama"), "vision_config": siglip()},
    _got("got_ocr2"),
    _got("pp_chart2table"),
    {
        "model_type": "video_llama_3",
        **IMAGE,
        "video_token_id": 8,
        "text_config": text("qwen2"),
        "vision_config": {
            "num_hidden_layers": 6,
            "patch_size": 14,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_attention_heads": 16,
        },
    },
    {
        "model_type": "hunyuan_vl",
        **IMAGE,
        "im_start_id": 9,
        "im_end_id": 10,
        "im_newline_id": 11,
        "text_config": text(
            "hunyuan_vl_text",
            head_dim=64,
            rope_parameters={
                "rope_type": "xdrope",
                "rope_theta": 10000.0,
                "alpha": 1000.0,
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "xdrope_section": [8, 8, 8, 8],
            },
        ),
        "vision_config": {"num_hidden_layers": 4, "out_hidden_size": 1024, "text_hidden_size": 1024},
    },
    {
        "model_type": "janus",
        **IMAGE,
        "text_config": text("llama"),
        "vision_config": {"num_hidden_layers": 6, "projection_dim": 1024},
        "vq_config": {"projection_dim": 1024, "image_token_embed_dim": 1024},
    },
    {
        "model_type": "deepseek_vl_hybrid",
        **IMAGE,
        "text_config": text("llama"),
        "vision_config": siglip(layers=4),
        "high_res_vision_config": {
            "model_type": "sam_vision_model",
            "num_hidden_layers": 4,
            "global_attn_indexes": [1, 3],
            "hidden_size": 768,
            "num_attention_heads": 12,
            "output_channels": 256,
            "image_size": 1024,
        },
    },
    {
        "model_type": "deepseek_ocr2",
        **IMAGE,
        "text_config": text(
            "deepseek_ocr2_text",
            num_hidden_layers=3,
            mlp_layer_types=["dense", "sparse", "sparse"],
            n_routed_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=512,
        ),
        "vision_config": {
            "sam_config": {
                "num_hidden_layers": 4,
                "global_attn_indexes": [1, 3],
                "mlp_dim": 3072,
                "downsample_channels": [512, 896],
            },
            "encoder_config": {
                "hidden_size": 896,
                "intermediate_size": 2432,
                "num_hidden_layers": 4,
                "num_attention_heads": 14,
                "num_key_value_heads": 2,
            },
        },
    },
    {
        "model_type": "granite_docling",
        **IMAGE,
        "text_config": text("granite_docling_text"),
        "vision_config": {"num_hidden_layers": 6, "deepstack_visual_indexes": [1, 3]},
    },
    {
        "model_type": "granite4_vision",
        "image_token_index": 7,
        "vision_feature_select_strategy": "full",
        "downsample_rate": "4/8",
        "deepstack_layer_map": [[-1, 0], [-2, 2]],
        "spatial_target_layers": [],
        "image_grid_pinpoints": [[256, 512], [512, 256], [512, 512]],
        "qformer_config": {
            "model_type": "blip_2_qformer",
            "hidden_size": 768,
            "encoder_hidden_size": 768,
            "num_hidden_layers": 2,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        "text_config": text("granite4_vision_text"),
        "vision_config": siglip(width=768, side=256, layers=4),
    },
    {
        "model_type": "aria",
        "image_token_index": 7,
        "text_config": {
            **text("aria_text", intermediate_size=512, num_hidden_layers=3, num_key_value_heads=16),
            "moe_num_experts": 8,
            "moe_topk": 2,
            "moe_num_shared_experts": 2,
            "head_dim": 64,
        },
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "image_size": 980,
            "patch_size": 14,
        },
    },
    {
        "model_type": "video_llava",
        "image_token_index": 7,
        "video_token_index": 8,
        "text_config": text("llama"),
        "vision_config": clip(224),
    },
    {
        "model_type": "cohere_compass",
        **IMAGE,
        **VIDEO,
        "text_config": text(
            "cohere_compass_text",
            layer_types=["sliding_attention", "full_attention"] * 2,
            sliding_window=512,
            rope_parameters={"full_attention": ROPE, "sliding_attention": ROPE},
        ),
        "vision_config": qwen3_vision(deepstack_visual_indexes=[1, 2]),
    },
    {
        "model_type": "kimi_k25",
        **IMAGE,
        **VIDEO,
        "text_config": text(
            "deepseek_v3",
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=8,
            kv_lora_rank=256,
            q_lora_rank=512,
            first_k_dense_replace=1,
            n_routed_experts=8,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            moe_intermediate_size=512,
        ),
        "vision_config": {"num_hidden_layers": 4},
    },
    {
        "model_type": "molmo2",
        "image_patch_id": 7,
        "image_start_token_id": 9,
        "low_res_image_start_token_id": 10,
        "image_end_token_id": 11,
        "frame_start_token_id": 12,
        "frame_end_token_id": 13,
        "text_config": text("molmo2_text", head_dim=64),
        "vision_config": {"num_hidden_layers": 6},
        "adapter_config": {"vision_feature_layer": [-1, -2], "text_hidden_size": 1024, "intermediate_size": 2816},
    },
    {
        "model_type": "muse_glimmer",
        **MUSE,
        "text_config": text("muse_glimmer_text", head_dim=64),
    },
)
DESCRIBED_MODELS: dict[str, Mapping[str, Any]] = {str(one["model_type"]): one for one in _DESCRIBED}
"""Types with a family of which no file is packaged."""
PREPROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "cosmos3_omni": {
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
    },
    "dots3_note": {"temporal_patch_size": 1},
    "glmga": {"processor_class": "Glm46VProcessor", "image_processor_type": "GlmgaImageProcessor"},
}
"""What the preprocessor_config.json of a checkpoint has to say: which processor, where transformers names none, and
settings that are not the defaults of their classes."""
