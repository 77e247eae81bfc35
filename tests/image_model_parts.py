"""Parts of small configurations of model types that see: language models and vision towers with a few layers."""

from collections.abc import Mapping
from typing import Any

IMAGE = {"image_token_id": 7}
VIDEO = {"video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def text(model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


def mrope(*section: int) -> dict[str, Any]:
    return {**ROPE, "mrope_section": list(section)}


def siglip(width: int = 1024, side: int = 384, patch: int = 16, layers: int = 6) -> dict[str, Any]:
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "image_size": side,
        "patch_size": patch,
        "vision_use_head": False,
    }


def clip(side: int) -> dict[str, Any]:
    return {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "image_size": side,
        "patch_size": 14,
        "projection_dim": 768,
    }


def qwen3_vision(**more: Any) -> dict[str, Any]:
    return {"depth": 4, "patch_size": 16, "out_hidden_size": 1024, **more}


MUSE: Mapping[str, Any] = {
    **IMAGE,
    "video_token_id": 8,
    "out_hidden_size": 2048,
    "projector_hidden_size": 1024,
    "vision_config": {
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "layer_types": ["window_attention", "window_attention", "window_attention", "full_attention"],
    },
}
"""What Muse Glimmer and Muse Spark have in common."""
