"""Small configurations of families that see, made of others' parts, with what their image processors are told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DECODER = ("model.language_model", "model.text_model", "lm_head")
IMAGE_TOKEN, VIDEO_TOKEN = 999, 998


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeing:
    """``settings`` are those of the image processor, and of the one of videos; ``num_axes`` of
    positions spare the model a search for images."""

    config: dict[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = (300, 200)
    images: int = 2
    towers: tuple[str, ...] = ("model.vision_tower",)
    projectors: tuple[str, ...] = ("model.multi_modal_projector",)
    video_token: bool = False
    num_axes: int = 0
    side: int | None = None
    """Of the images that the processor has room for, whatever the tower here takes."""
    own: Mapping[str, Any] | None = None
    """The ``vision_config`` that suits the processor's own settings, where those here do not."""
    needs: str | None = None
    attention: str = "sdpa"
    tolerance: float = 0.002
    """Of bytes on the CPU, whose norms of 16 bit keep means and deviations in 16 bit too, and CUDA's in 32."""
    num_around: int = 0
    """Tokens around an image that its processor wants to see, which a chat template writes."""
    has_processor: bool = True
    """Whether its processor writes the tokens of images: a chat template may."""


def text(model_type: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "vocab_size": 1000,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **more,
    }


TOWER: Mapping[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 448,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "patch_size": 14,
    "image_size": 112,
}
CLIP: Mapping[str, Any] = {"model_type": "clip_vision_model", **TOWER}
SQUARE = {"height": 112, "width": 112}
OF_CLIP: Mapping[str, Any] = {"size": {"shortest_edge": 112}, "crop_size": SQUARE}
GRID = [[112, 224], [224, 112], [224, 224]]
GOT: Mapping[str, Any] = {
    "image_token_index": IMAGE_TOKEN,
    "text_config": text("qwen2"),
    "vision_config": {
        "hidden_size": 192,
        "output_channels": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "mlp_dim": 448,
        "image_size": 256,
        "patch_size": 4,
        "global_attn_indexes": [1, 3],
    },
}
FAMILIES: Mapping[str, Seeing] = {
    "vipllava": Seeing(
        config={
            "model_type": "vipllava",
            "image_token_index": IMAGE_TOKEN,
            "vision_feature_layer": [-2, -3, 1],
            "image_seq_length": 64,
            "text_config": text("llama"),
            "vision_config": CLIP,
        },
        settings={**OF_CLIP, "image_processor_type": "CLIPImageProcessor"},
    ),
    "video_llava": Seeing(
        config={
            "model_type": "video_llava",
            "image_token_index": IMAGE_TOKEN,
            "video_token_index": VIDEO_TOKEN,
            "text_config": text("llama"),
            "vision_config": CLIP,
        },
        settings={**OF_CLIP, "image_processor_type": "VideoLlavaImageProcessor"},
        towers=("model.image_tower", "model.video_tower"),
    ),
    "llava_next_video": Seeing(
        config={
            "model_type": "llava_next_video",
            "image_token_index": IMAGE_TOKEN,
            "video_token_index": VIDEO_TOKEN,
            "image_grid_pinpoints": GRID,
            "text_config": text("llama"),
            "vision_config": CLIP,
        },
        settings={**OF_CLIP, "image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": GRID},
        video_token=True,
    ),
    "qianfan_ocr": Seeing(
        config={
            "model_type": "qianfan_ocr",
            "image_token_id": IMAGE_TOKEN,
            "text_config": text("qwen3", head_dim=32),
            "vision_config": {**TOWER, "image_size": [112, 112], "patch_size": [14, 14]},
        },
        settings={"image_processor_type": "GotOcr2ImageProcessor", "size": SQUARE, "max_patches": 6},
        side=448,
    ),
    "minicpm_ocr": Seeing(
        config={
            "model_type": "minicpm_ocr",
            "image_token_id": IMAGE_TOKEN,
            "video_token_id": VIDEO_TOKEN,
            "insert_layer_id": 1,
            "text_config": text(
                "qwen3_5_text",
                head_dim=32,
                linear_num_value_heads=2,
                linear_num_key_heads=2,
                linear_key_head_dim=16,
                linear_value_head_dim=16,
            ),
            "vision_config": {**TOWER, "num_attention_heads": 4},
        },
        settings={"image_processor_type": "MiniCPMOcrImageProcessor", "scale_resolution": 112},
        projectors=("model.merger",),
        video_token=True,
        needs="torchvision",
    ),
    "glmga": Seeing(
        config={
            "model_type": "glmga",
            "image_token_id": IMAGE_TOKEN,
            "video_token_id": VIDEO_TOKEN,
            "image_start_token_id": 997,
            "image_end_token_id": 996,
            "video_start_token_id": 995,
            "video_end_token_id": 994,
            "text_config": text(
                "glm4v_text",
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            ),
            "vision_config": {
                "model_type": "glm4v_vision",
                "depth": 3,
                "hidden_size": 192,
                "num_heads": 4,
                "out_hidden_size": 128,
                "intermediate_size": 320,
            },
        },
        settings={
            "image_processor_type": "GlmgaImageProcessor",
            "processor_class": "Glm46VProcessor",
            "patch_expand_factor": 2,
        },
        towers=("model.visual.blocks", "model.visual.patch_embed"),
        projectors=("model.visual.merger",),
        num_axes=3,
        needs="torchvision",
    ),
    "hyperclovax_vision_v2": Seeing(
        config={
            "model_type": "hyperclovax_vision_v2",
            "image_token_id": IMAGE_TOKEN,
            "video_token_id": VIDEO_TOKEN,
            "text_config": text("hyperclovax", head_dim=32),
            "vision_config": {
                "model_type": "qwen2_5_vl",
                "depth": 3,
                "hidden_size": 192,
                "num_heads": 4,
                "out_hidden_size": 160,
                "intermediate_size": 320,
                "fullatt_block_indexes": [1],
            },
        },
        settings={"image_processor_type": "Qwen2VLImageProcessor"},
        towers=("model.vision_model.blocks", "model.vision_model.patch_embed"),
        projectors=("model.vision_model.merger", "model.projector"),
    ),
    "hunyuan_vl": Seeing(
        config={
            "model_type": "hunyuan_vl",
            "image_token_id": IMAGE_TOKEN,
            "text_config": text(
                "hunyuan_vl_text",
                head_dim=32,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 4, 4, 4]},
            ),
            "vision_config": {
                "hidden_size": 192,
                "intermediate_size": 448,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "max_image_size": 512,
            },
        },
        settings={"image_processor_type": "HunYuanVLImageProcessor"},
        towers=("model.vision_tower.layers", "model.vision_tower.embeddings"),
        projectors=("model.vision_tower.patch_merger",),
        num_axes=4,
        images=1,
        num_around=2,
    ),
    "video_llama_3": Seeing(
        config={
            "model_type": "video_llama_3",
            "image_token_id": IMAGE_TOKEN,
            "video_token_id": VIDEO_TOKEN,
            "text_config": text("qwen2"),
            "vision_config": {**TOWER, "num_attention_heads": 4},
        },
        settings={"image_processor_type": "VideoLlama3ImageProcessor", "patch_size": 14},
        towers=("model.vision_model",),
        projectors=("model.projector",),
    ),
    "deepseek_vl": Seeing(
        config={
            "model_type": "deepseek_vl",
            "image_token_id": IMAGE_TOKEN,
            "text_config": text("llama"),
            "vision_config": {"model_type": "siglip_vision_model", **TOWER},
        },
        settings={"image_processor_type": "DeepseekVLImageProcessor", "size": SQUARE},
        towers=("model.vision_model",),
        projectors=("model.aligner",),
        side=336,
    ),
    "deepseek_ocr2": Seeing(
        config={
            "model_type": "deepseek_ocr2",
            "image_token_id": IMAGE_TOKEN,
            "text_config": text(
                "deepseek_ocr2_text",
                mlp_layer_types=["dense", "sparse", "sparse"],
                n_routed_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=96,
            ),
            "vision_config": {
                "sam_config": {**GOT["vision_config"], "downsample_channels": [96, 128]},
                "encoder_config": {
                    "hidden_size": 128,
                    "intermediate_size": 320,
                    "num_hidden_layers": 3,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                },
            },
        },
        settings={
            "image_processor_type": "DeepseekOcr2ImageProcessor",
            "size": {"height": 256, "width": 256},
            "tile_size": 192,
        },
        attention="eager",
        own={"sam_config": {"num_hidden_layers": 1}, "encoder_config": {"num_hidden_layers": 1}},
    ),
    "deepseek_vl_hybrid": Seeing(
        config={
            "model_type": "deepseek_vl_hybrid",
            "image_token_id": IMAGE_TOKEN,
            "text_config": text("llama"),
            "vision_config": {"model_type": "siglip_vision_model", **TOWER},
            "high_res_vision_config": {"model_type": "sam_vision_model", **GOT["vision_config"]},
        },
        settings={
            "image_processor_type": "DeepseekVLHybridImageProcessor",
            "size": SQUARE,
            "high_res_size": {"height": 256, "width": 256},
        },
        towers=("model.vision_model", "model.high_res_vision_model"),
        projectors=("model.aligner", "model.high_res_vision_neck", "model.high_res_vision_alpha"),
        side=336,
        attention="eager",
        tolerance=0.005,
    ),
    "janus": Seeing(
        config={
            "model_type": "janus",
            "image_token_id": IMAGE_TOKEN,
            "text_config": text("llama"),
            "vision_config": {
                **{name: value for name, value in TOWER.items() if name != "intermediate_size"},
                "projection_dim": 128,
            },
            "vq_config": {
                "num_embeddings": 300,
                "latent_channels": 32,
                "base_channels": 32,
                "channel_multiplier": [1, 2],
                "projection_dim": 128,
                "image_token_embed_dim": 128,
            },
        },
        settings={"image_processor_type": "JanusImageProcessor", "size": SQUARE},
        towers=("model.vision_model", "model.vqmodel"),
        projectors=("model.aligner", "model.generation_head"),
        side=336,
    ),
    "cohere_compass": Seeing(
        config={
            "model_type": "cohere_compass",
            "image_token_id": IMAGE_TOKEN,
            "video_token_id": VIDEO_TOKEN,
            "vision_start_token_id": 997,
            "vision_end_token_id": 996,
            "text_config": text(
                "cohere_compass_text",
                num_hidden_layers=4,
                head_dim=32,
                sliding_window=128,
                layer_types=["sliding_attention", "full_attention"] * 2,
                rope_parameters={
                    "full_attention": None,
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]},
                },
            ),
            "vision_config": {
                "model_type": "cohere_compass_vision",
                "depth": 4,
                "hidden_size": 192,
                "intermediate_size": 320,
                "num_heads": 4,
                "out_hidden_size": 128,
                "deepstack_visual_indexes": [1, 2],
            },
        },
        settings={"image_processor_type": "CohereCompassImageProcessor", "patch_size": 16},
        towers=("model.visual.blocks", "model.visual.patch_embed"),
        projectors=("model.visual.merger", "model.visual.deepstack_merger_list"),
        num_axes=3,
        num_around=0,
    ),
    "aria": Seeing(
        config={
            "model_type": "aria",
            "image_token_index": IMAGE_TOKEN,
            "projector_patch_to_query_dict": {"196": 256},
            "text_config": text("aria_text", head_dim=32),
            "vision_config": {**TOWER, "model_type": "idefics3_vision", "patch_size": 70, "image_size": 980},
        },
        settings={"image_processor_type": "AriaImageProcessor"},
    ),
    "granite4_vision": Seeing(
        config={
            "model_type": "granite4_vision",
            "image_token_index": IMAGE_TOKEN,
            "vision_feature_select_strategy": "full",
            "downsample_rate": "2/4",
            "deepstack_layer_map": [[-1, 0], [2, 2]],
            "spatial_target_layers": [1],
            "image_grid_pinpoints": GRID,
            "qformer_config": {"model_type": "blip_2_qformer", "num_hidden_layers": 2, "intermediate_size": 320},
            "text_config": text("granite4_vision_text"),
            "vision_config": {"model_type": "siglip_vision_model", **TOWER},
        },
        settings={**OF_CLIP, "image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": GRID},
        projectors=("model.layerwise_projectors", "model.spatial_projectors", "model.image_newline"),
        attention="eager",
    ),
    "granite_docling": Seeing(
        config={
            "model_type": "granite_docling",
            "image_token_id": IMAGE_TOKEN,
            "density_router_hidden_size": 64,
            "text_config": text("granite_docling_text"),
            "vision_config": {
                **TOWER,
                "patch_size": 14,
                "out_hidden_size": 128,
                "num_hidden_layers": 5,
                "deepstack_visual_indexes": [0, 2],
            },
        },
        settings={"image_processor_type": "GraniteDoclingImageProcessor", "size": SQUARE, "max_patches": 6},
        towers=("model.vision_model.encoder", "model.vision_model.embeddings"),
        projectors=("model.vision_model.connector", "model.density_router"),
        side=448,
    ),
    "got_ocr2": Seeing(
        config={"model_type": "got_ocr2", **GOT},
        settings={"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 256, "width": 256}},
        attention="eager",
    ),
    "pp_chart2table": Seeing(
        config={"model_type": "pp_chart2table", **GOT},
        settings={"image_processor_type": "PPChart2TableImageProcessor", "size": {"height": 256, "width": 256}},
        attention="eager",
        has_processor=False,
    ),
}
"""By model_type."""


def of_side(said: Seeing) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The configuration and settings of images of the processor's own side."""
    if said.own is not None:
        settings = {"image_processor_type": said.settings["image_processor_type"]}
        return {**said.config, "vision_config": dict(said.own)}, settings
    if said.side is None:
        return said.config, said.settings
    is_one = isinstance(said.config["vision_config"]["image_size"], int)
    vision = {**said.config["vision_config"], "image_size": said.side if is_one else [said.side, said.side]}
    return {**said.config, "vision_config": vision}, {
        **said.settings,
        "size": {"height": said.side, "width": said.side},
    }


DEFAULTS: Mapping[str, dict[str, Any]] = {
    f"{name} by default": {"model_type": name}
    for name in FAMILIES
    if name not in ("cohere_compass", "deepseek_ocr2", "glmga", "granite4_vision", "hunyuan_vl", "minicpm_ocr")
}
"""As transformers' classes have them, where their parts fit."""
