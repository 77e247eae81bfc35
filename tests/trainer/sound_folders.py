"""Folders of tiny models that hear, with the files that published checkpoints of their families have."""

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from published_folders import FAMILIES, TEXT, Published, write_published

GEMMA_TEXT = {**TEXT, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 512, "num_kv_shared_layers": 0}
GEMMA4_TEXT = {**GEMMA_TEXT, "layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 16}
GEMMA_TOKENS = {
    "image_token": "<image_soft_token>",
    "audio_token": "<audio_soft_token>",
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "boa_token": "<start_of_audio>",
    "eoa_token": "<end_of_audio>",
}
GEMMA_IDS = {"image_token_id": "$<image_soft_token>", "audio_token_id": "$<audio_soft_token>"}
GEMMA4_IDS = {**GEMMA_IDS, "video_token_id": "$<|video|>"}
MARKS = {"boi_token_id": "$<start_of_image>", "eoi_token_id": "$<end_of_image>", "boa_token_id": "$<start_of_audio>"}
PHI_IDS = {"image_token_id": "$<|image|>", "audio_token_id": "$<|audio|>"}
OMNI = FAMILIES["qwen2_5_omni_thinker"]
HEARING: Mapping[str, Published] = {
    "qwen2_5_omni_thinker": replace(OMNI, settings={**OMNI.settings, "chunk_length": 40}),  # of 300 s, padded to always
    "qwen3_omni_moe_thinker": FAMILIES["qwen3_omni_moe_thinker"],
    "gemma4": Published(
        alias="gemma-4-e2b",
        config={
            "text_config": {"model_type": "gemma4_text", **GEMMA4_TEXT},
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "patch_size": 16,
            },
            "audio_config": {
                "model_type": "gemma4_audio",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "output_proj_dims": 32,
            },
            **GEMMA4_IDS,
            **MARKS,
        },
        image="<image_soft_token>",
        tokens=("<|video|>",),
        named_tokens=GEMMA_TOKENS,
        processor={"feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"}},
    ),
    "gemma4_unified": Published(
        alias="gemma-4-12b",
        config={
            "text_config": {"model_type": "gemma4_unified_text", **GEMMA4_TEXT},
            "vision_config": {
                "model_type": "gemma4_unified_vision",
                "mm_embed_dim": 32,
                "output_proj_dims": 32,
                "mm_posemb_size": 64,
            },
            "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 640},
            **GEMMA4_IDS,
            **MARKS,
        },
        image="<image_soft_token>",
        tokens=("<|video|>",),
        named_tokens=GEMMA_TOKENS,
        processor={"feature_extractor": {"feature_extractor_type": "Gemma4UnifiedAudioFeatureExtractor"}},
    ),
    "gemma3n": Published(
        alias="gemma-3n-e2b",
        config={
            "text_config": {
                "model_type": "gemma3n_text",
                **GEMMA_TEXT,
                "laurel_rank": 8,
                "activation_sparsity_pattern": [0.95, 0.0],
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "vision_config": {"vocab_offset": 512, "vocab_size": 16},
            "audio_config": {
                "conf_num_hidden_layers": 2,
                "hidden_size": 64,
                "conf_num_attention_heads": 4,
                "vocab_offset": 528,
                "vocab_size": TEXT["vocab_size"] - 528,
            },
            **GEMMA_IDS,
        },
        image="<image_soft_token>",
        named_tokens=GEMMA_TOKENS,
        processor={"feature_extractor": {"feature_extractor_type": "Gemma3nAudioFeatureExtractor"}},
    ),
    "phi4_multimodal": Published(
        alias="phi-4-multimodal",
        config={
            **TEXT,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 28,
                "crop_size": 28,
                "patch_size": 14,
                "image_token_id": "$<|image|>",
            },
            "audio_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_blocks": 2,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 32,
                "depthwise_separable_out_channel": 32,
                "nemo_conv_channels": 32,
                "audio_token_id": "$<|audio|>",
            },
        },
        image="<|image|>",
        named_tokens={"image_token": "<|image|>", "audio_token": "<|audio|>"},
        processor={
            "image_processor": {"image_processor_type": "Phi4MultimodalImageProcessor"},
            "audio_processor": {"feature_extractor_type": "Phi4MultimodalFeatureExtractor"},
        },
    ),
}
"""By the type of config.json."""
SOUNDS = {
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), "<|audio_start|><|audio_pad|><|audio_end|>"),
    **dict.fromkeys(("gemma3n", "gemma4", "gemma4_unified"), "<audio_soft_token>"),
    "phi4_multimodal": "<|audio|>",
}
"""What their chat templates write for a sound."""
NEEDS = {"gemma3n": ("timm",), "gemma4_unified": ("torchvision",), "phi4_multimodal": ("torchvision",)}
"""Packages without which transformers makes no model or no processor of them."""


def write_hearing(folder: Path, family: str) -> Path:
    """Write the files of ``family`` in small into ``folder``, which is made; skips the test where a package misses."""
    missing = [name for name in NEEDS.get(family, ()) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{family} needs {' and '.join(missing)}")
    write_published(folder, family, HEARING[family])
    path = folder / "chat_template.jinja"
    path.write_text(
        path.read_text().replace("else part.text", f"else '{SOUNDS[family]}' if part.type == 'audio' else part.text")
    )
    return folder
