"""Folders of tiny models that see videos by rules of their own, with the files that published checkpoints have."""

from collections.abc import Mapping
from dataclasses import replace

from published_folders import HYBRID, TEXT, TOWER, Published, qwen

MARKS = {
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}
SMALL = {"scale_resolution": 112, "patch_size": 14}


def minicpmv(**more: object) -> Published:
    ids = {"image_token_id": "$<|image_pad|>", "video_token_id": "$<|video_pad|>"}
    return Published(
        alias="minicpm-v-4.6",
        config={
            "text_config": {"model_type": "qwen3_5_text", **TEXT, **HYBRID},
            "vision_config": {**TOWER, "image_size": 112},
            "insert_layer_id": 0,
            **ids,
            **more,
        },
        image="<|image_pad|>",
        settings=SMALL,
        named_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>", **MARKS},
    )


CANVAS = {
    "image_start_id": "$<image>",
    "image_end_id": "$</image>",
    "slice_start_id": "$<slice>",
    "slice_end_id": "$</slice>",
    "newline_id": "$Ċ",
}
"""What MiniCPM-V 4.7 looks for; the last is a line break in bytes."""
EXAONE = qwen(
    "qwen2.5-vl-3b",
    {"model_type": "exaone4", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    {"window_size": 56, "fullatt_block_indexes": [1], "num_key_value_heads": 2},
    image_processor_type="Qwen2VLImageProcessor",
    processor_class="Exaone4_5_Processor",
)
LFM3 = qwen(
    "qwen3-vl-2b",
    {"model_type": "lfm3", "layer_types": ["conv", "full_attention"]},
    {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "patch_size": 16},
    size={"shortest_edge": 1024, "longest_edge": 64 * 64},
    patch_size=16,
    processor_class="Lfm3VlProcessor",
)
OF_VIDEOS: Mapping[str, Published] = {
    "minicpmv4_6": minicpmv(),
    "minicpmv4_7": replace(minicpmv(**CANVAS), settings={**SMALL, "processor_class": "MiniCPMV4_7Processor"}),
    "exaone4_5": EXAONE,
    "lfm3_vl": LFM3,
}
