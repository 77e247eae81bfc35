"""Folders of tiny models of families made of others' parts, with the files that published checkpoints have."""

from collections.abc import Mapping
from dataclasses import replace

from published_folders import (
    BLOCKS,
    CLIP,
    FAMILIES,
    GRID,
    LLAMA,
    QWEN2,
    SIGLIP,
    SQUARE,
    TEXT,
    TOWER,
    Published,
    glm4v,
    llava,
    qwen,
)
from video_folders import minicpmv

SAM = {
    "hidden_size": 24, "output_channels": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "mlp_dim": 48,
    "image_size": 64, "global_attn_indexes": [1], "window_size": 14,
}  # fmt: skip
SMALL = {"scale_resolution": 112, "patch_size": 14}
SEEING: Mapping[str, Published] = {
    "glmga": replace(
        glm4v("glm-4.1v-9b"),
        config={**glm4v("glm-4.1v-9b", model_type="glm4v_text").config},
        settings={
            "size": {"shortest_edge": 784, "longest_edge": 56 * 56 * 2},
            "image_processor_type": "GlmgaImageProcessor",
            "video_processor_type": "GlmgaVideoProcessor",
            "processor_class": "Glm46VProcessor",
        },
        needs="torchvision",
    ),
    "cohere_compass": Published(
        alias="qwen3-vl-2b",
        config={
            "text_config": {
                **TEXT,
                "model_type": "cohere_compass_text",
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {
                    "full_attention": None,
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
                },
            },
            "vision_config": {**BLOCKS, "model_type": "cohere_compass_vision", "deepstack_visual_indexes": [0]},
            "image_token_id": "$<|IMAGE_PAD|>",
            "video_token_id": "$<|VIDEO_PAD|>",
            "vision_start_token_id": "$<|VISION_START|>",
            "vision_end_token_id": "$<|VISION_END|>",
        },
        image="<|VISION_START|><|IMAGE_PAD|><|VISION_END|>",
        settings={
            "size": {"shortest_edge": 784, "longest_edge": 56 * 56},
            "patch_size": 14,
            "image_processor_type": "CohereCompassImageProcessor",
            "video_processor_type": "CohereCompassVideoProcessor",
            "processor_class": "CohereCompassProcessor",
        },
        tokens=("<|IMAGE_PAD|>", "<|VIDEO_PAD|>", "<|VISION_START|>", "<|VISION_END|>"),
        needs="torchvision",
    ),
    "deepseek_vl": Published(
        alias="paligemma-3b",
        config={"text_config": LLAMA, "vision_config": SIGLIP, "image_token_id": "$<image_placeholder>"},
        image="<image_placeholder>",
        settings={
            "size": SQUARE,
            "image_processor_type": "DeepseekVLImageProcessor",
            "processor_class": "DeepseekVLProcessor",
        },
        processor={"num_image_tokens": 4},
        named_tokens={"image_token": "<image_placeholder>"},
    ),
    "deepseek_ocr2": Published(
        alias="paligemma-3b",
        config={
            "text_config": {
                **TEXT,
                "model_type": "deepseek_ocr2_text",
                "mlp_layer_types": ["dense", "sparse"],
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
            },
            "vision_config": {
                "sam_config": {
                    **SAM,
                    "patch_size": 1,
                    "use_rel_pos": False,
                    "global_attn_indexes": [],
                    "downsample_channels": [16, 32],
                },
                "encoder_config": {
                    **{name: TOWER[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
                    "num_attention_heads": 2,
                    "num_key_value_heads": 2,
                },
            },
            "image_token_id": "$<image>",
        },
        image="<image>",
        settings={
            "size": {"height": 64, "width": 64},
            "tile_size": 48,
            "image_processor_type": "DeepseekOcr2ImageProcessor",
            "processor_class": "DeepseekOcr2Processor",
        },
        processor={"patch_size": 1},
        named_tokens={"image_token": "<image>"},
    ),
    "deepseek_vl_hybrid": Published(
        alias="paligemma-3b",
        config={
            "text_config": LLAMA,
            "vision_config": SIGLIP,
            "high_res_vision_config": {
                "model_type": "sam_vision_model",
                **SAM,
                "image_size": 32,
                "patch_size": 8,
                "window_size": 2,
            },
            "image_token_id": "$<image_placeholder>",
        },
        image="<image_placeholder>",
        settings={
            "size": SQUARE,
            "high_res_size": {"height": 32, "width": 32},
            "image_processor_type": "DeepseekVLHybridImageProcessor",
            "processor_class": "DeepseekVLHybridProcessor",
        },
        processor={"num_image_tokens": 4},
        named_tokens={"image_token": "<image_placeholder>"},
    ),
    "got_ocr2": Published(
        alias="internvl3-1b",
        config={
            "text_config": {**QWEN2, "tie_word_embeddings": True},
            "vision_config": {**SAM, "patch_size": 1},
            "image_token_index": "$<imgpad>",
        },
        image="<img><imgpad></img>",
        settings={
            "size": {"height": 64, "width": 64},
            "crop_to_patches": False,
            "processor_class": "GotOcr2Processor",
        },
        tokens=("<imgpad>", "<img>", "</img>"),
    ),
    "aria": Published(
        alias="paligemma-3b",
        config={
            "text_config": {
                **TEXT,
                "model_type": "aria_text",
                "moe_num_experts": 4,
                "moe_topk": 2,
                "moe_num_shared_experts": 1,
            },
            "vision_config": {"model_type": "idefics3_vision", **TOWER, "patch_size": 140, "image_size": 980},
            "projector_patch_to_query_dict": {"49": 256},
            "image_token_index": "$<image>",
        },
        image="<image>",
        settings={"image_processor_type": "AriaImageProcessor", "processor_class": "AriaProcessor"},
        named_tokens={"image_token": "<image>"},
    ),
    "granite4_vision": replace(
        llava(
            "llava-v1.6-mistral-7b",
            {"image_grid_pinpoints": GRID, "processor_class": "Granite4VisionProcessor"},
            image_grid_pinpoints=GRID,
            text_config={**TEXT, "model_type": "granite4_vision_text"},
            vision_config={**CLIP, "hidden_size": 64},
            qformer_config={"model_type": "blip_2_qformer", "num_hidden_layers": 1, "intermediate_size": 48},
            downsample_rate="1/2",
            deepstack_layer_map=[[-1, 0]],
            spatial_target_layers=[1],
            projector_dropout=0.0,
        ),
        processor={
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "downsample_rate": "1/2",
        },
    ),
    "granite_docling": replace(
        FAMILIES["idefics3"],
        config={
            "text_config": {**TEXT, "model_type": "granite_docling_text"},
            "vision_config": {
                **TOWER,
                "scale_factor": 1,
                "use_fine_route": False,
                "out_hidden_size": 32,
                "deepstack_visual_indexes": [0],
            },
            "image_token_id": "$<image>",
        },
        settings={
            "size": SQUARE,
            "max_patches": 4,
            "image_processor_type": "GraniteDoclingImageProcessor",
            "processor_class": "GraniteDoclingProcessor",
        },
    ),
    "hunyuan_vl": Published(
        alias="qwen2-vl-2b",
        config={
            "text_config": {
                **TEXT,
                "model_type": "hunyuan_vl_text",
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2, 2]},
            },
            "vision_config": {
                **{name: TOWER[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")},
                "num_attention_heads": 2,
                "patch_size": 14,
                "max_image_size": 112,
            },
            "image_token_id": "$<image>",
        },
        image="<img><image></img>",
        settings={
            "size": {"shortest_edge": 56 * 56, "longest_edge": 56 * 56},
            "min_pixels": None,
            "max_pixels": None,
            "temporal_patch_size": 1,
            "image_processor_type": "HunYuanVLImageProcessor",
            "processor_class": "HunYuanVLProcessor",
        },
        named_tokens={"image_token": "<image>", "image_start_token": "<img>", "image_end_token": "</img>"},
    ),
    "hyperclovax_vision_v2": replace(
        qwen(
            "qwen2.5-vl-3b",
            {"model_type": "hyperclovax"},
            {"model_type": "qwen2_5_vl_vision", "window_size": 56, "fullatt_block_indexes": [1], "out_hidden_size": 24},
            image_processor_type="Qwen2VLImageProcessor",
            processor_class="HyperCLOVAXVisionV2Processor",
        ),
        needs="torchvision",
    ),
    "janus": Published(
        alias="paligemma-3b",
        config={
            "text_config": LLAMA,
            "vision_config": {
                **{name: value for name, value in TOWER.items() if name != "intermediate_size"},
                "mlp_ratio": 1.5,
                "projection_dim": 32,
            },
            "vq_config": {
                "num_embeddings": 64,
                "latent_channels": 32,
                "base_channels": 32,
                "channel_multiplier": [1],
                "num_res_blocks": 1,
                "projection_dim": 32,
                "image_token_embed_dim": 32,
            },
            "image_token_id": "$<image_placeholder>",
        },
        image="<image_placeholder>",
        settings={
            "size": SQUARE,
            "image_processor_type": "JanusImageProcessor",
            "processor_class": "JanusProcessor",
        },
        processor={"num_image_tokens": 4},
        named_tokens={
            "image_token": "<image_placeholder>",
            "boi_token": "<begin_of_image>",
            "eoi_token": "<end_of_image>",
        },
    ),
    "llava_next_video": replace(
        llava(
            "llava-v1.6-mistral-7b",
            {"image_grid_pinpoints": GRID, "processor_class": "LlavaNextVideoProcessor"},
            image_grid_pinpoints=GRID,
            video_token_index="$<video>",
        ),
        named_tokens={"image_token": "<image>", "video_token": "<video>"},
        needs="torchvision",
    ),
    "minicpm_ocr": replace(
        minicpmv(downsample_mode="4x"),
        settings={
            **SMALL,
            "downsample_mode": "4x",
            "image_processor_type": "MiniCPMOcrImageProcessor",
            "processor_class": "MiniCPMOcrProcessor",
        },
        needs="torchvision",
    ),
    "qianfan_ocr": Published(
        alias="internvl3-1b",
        config={
            "text_config": {"model_type": "qwen3", **TEXT},
            "vision_config": {**TOWER, "image_size": [28, 28], "patch_size": [14, 14], "num_hidden_layers": 3},
            "downsample_ratio": 1.0,
            "image_seq_length": 4,
            "image_token_id": "$<IMG_CONTEXT>",
        },
        image="<image>",
        settings={"size": SQUARE, "max_patches": 4, "crop_to_patches": True, "processor_class": "QianfanOCRProcessor"},
        processor={"image_seq_length": 4},
        named_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
        },
    ),
    "video_llama_3": replace(
        qwen(
            "qwen2-vl-2b",
            {"model_type": "qwen2"},
            {"num_hidden_layers": 2, "num_attention_heads": 2},
            image_processor_type="VideoLlama3ImageProcessor",
            video_processor_type="VideoLlama3VideoProcessor",
            processor_class="VideoLlama3Processor",
            merge_size=1,
            temporal_patch_size=1,
        ),
        needs="torchvision",
    ),
    "video_llava": replace(
        FAMILIES["llava"],
        config={
            "text_config": FAMILIES["llava"].config["text_config"],
            "vision_config": CLIP,
            "image_token_index": "$<image>",
            "video_token_index": "$<video>",
            "image_seq_length": 4,
        },
        settings={
            "size": {"shortest_edge": 28},
            "crop_size": SQUARE,
            "image_processor_type": "VideoLlavaImageProcessor",
            "processor_class": "VideoLlavaProcessor",
        },
        named_tokens={"image_token": "<image>", "video_token": "<video>"},
        needs="torchvision",
    ),
    "fast_vlm": Published(
        alias="fastvlm-0.5b",
        config={
            "text_config": QWEN2,
            "vision_config": {
                "model_type": "timm_wrapper",
                "architecture": "fastvit_mci3",
                "hidden_size": 3072,
                "model_args": {"inference_mode": True},
            },
            "image_token_index": "$<image>",
        },
        image="<image>",
        settings={"size": {"shortest_edge": 128}, "crop_size": {"height": 128, "width": 128}},
        processor={"patch_size": 64, "num_additional_image_tokens": 0},
        tokens=("<image>",),
        needs="timm",
    ),
    "vipllava": replace(
        FAMILIES["llava"],
        config={
            "text_config": FAMILIES["llava"].config["text_config"],
            "vision_config": {**CLIP, "num_hidden_layers": 3},
            "image_token_index": "$<image>",
            "vision_feature_layer": [-2, 1],
            "image_seq_length": 4,
        },
    ),
}
"""By model_type."""
