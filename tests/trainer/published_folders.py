"""Folders of tiny vision-language models with the files that published checkpoints of their families have.

Configurations are nested as published; settings of image processors are the published files of ``data/models`` with
small sizes; tokenizers name their special tokens in ``tokenizer_config.json``. Weights are random.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmplan.models.packaged import PACKAGED_MODELS
from vlmplan_trainer.models.tiny import tiny_tokenizer

VOCAB_SIZE = 640
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB_SIZE, "pad_token_id": 0, "bos_token_id": 0,
    "eos_token_id": 2, "max_position_embeddings": 2048,
}  # fmt: skip
LLAMA, QWEN2 = {"model_type": "llama", **TEXT}, {"model_type": "qwen2", **TEXT}
TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
CLIP, SIGLIP, PIXTRAL = (
    {"model_type": name, **TOWER} for name in ("clip_vision_model", "siglip_vision_model", "pixtral")
)
BLOCKS = {
    "depth": 2, "num_heads": 2, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32,
}  # fmt: skip
MROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
SQUARE = {"height": 28, "width": 28}
GRID = [[28, 56], [56, 28], [56, 56]]
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)]
OVIS_TOKENS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
GENERATION = {"bos_token_id": 0, "eos_token_id": [2, 0], "temperature": 0.01, "top_k": 1, "max_new_tokens": 4}
"""As published ones are: a list of ends, and a temperature without sampling, which transformers warns of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model of the catalog in small. ``config`` may name special tokens as ``"$token"`` for their ids.

    ``settings`` change the published preprocessor_config.json, ``processor`` is processor_config.json. ``image`` is
    what the chat template writes for an image.
    """

    alias: str
    config: Mapping[str, Any]
    image: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    needs: str | None = None
    """A package without which transformers does not load the processor at all."""


def qwen(alias: str, text: Mapping[str, Any], vision: Mapping[str, Any], **settings: Any) -> Published:
    ids = {"image_token_id": "$<|image_pad|>", "video_token_id": "$<|video_pad|>"}
    ids |= {"vision_start_token_id": "$<|vision_start|>", "vision_end_token_id": "$<|vision_end|>"}
    return Published(
        alias=alias,
        config={"text_config": {**TEXT, **text}, "vision_config": {**BLOCKS, **vision}, **ids},
        image="<|vision_start|><|image_pad|><|vision_end|>",
        settings={"min_pixels": 784, "max_pixels": 56 * 56, **settings},
    )


def omni(alias: str, text: Mapping[str, Any], vision: Mapping[str, Any], **settings: Any) -> Published:
    """A thinker, as a run leaves it, with the files of the whole model's processor."""
    ends = {"vision_start_token_id": "$<|vision_start|>", "vision_end_token_id": "$<|vision_end|>"}
    names = ("image_token", "video_token", "audio_token", "audio_bos_token", "audio_eos_token")
    key = "_token_index" if alias.startswith("qwen2.5") else "_token_id"
    seen = {f"{kind}{key}": f"$<|{kind}_pad|>" for kind in ("image", "video", "audio")}
    audio = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "output_dim": 32}
    pads = ("<|image_pad|>", "<|video_pad|>", "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>")
    return Published(
        alias=alias,
        config={
            "text_config": {**TEXT, **text},
            "vision_config": {**BLOCKS, **vision},
            "audio_config": {**audio, "num_mel_bins": 128},
            "audio_start_token_id": "$<|audio_start|>",
            **ends,
            **seen,
        },
        image="<|vision_start|><|image_pad|><|vision_end|>",
        settings={"min_pixels": 784, "max_pixels": 56 * 56, **settings},
        named_tokens={
            **dict(zip(names, pads, strict=True)),
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
    )


def glm4v(alias: str, **text: Any) -> Published:
    marks = ("begin_of_image", "end_of_image", "begin_of_video", "end_of_video")
    names = ("image_start_token_id", "image_end_token_id", "video_start_token_id", "video_end_token_id")
    ids = {name: f"$<|{mark}|>" for name, mark in zip(names, marks, strict=True)}
    ids |= {"image_token_id": "$<|image|>", "video_token_id": "$<|video|>"}
    return Published(
        alias=alias,
        config={
            "text_config": {**TEXT, "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}, **text},
            "vision_config": {**BLOCKS, "image_size": 56},
            **ids,
        },
        image="<|begin_of_image|><|image|><|end_of_image|>",
        settings={"size": {"shortest_edge": 784, "longest_edge": 56 * 56 * 2}},
        tokens=("<|image|>", "<|video|>", *(f"<|{mark}|>" for mark in marks)),
    )


def smolvlm(alias: str, **more: Any) -> Published:
    return Published(
        alias=alias,
        config={"text_config": LLAMA, "vision_config": TOWER, "scale_factor": 1, "image_token_id": "$<image>"},
        image="<image>",
        settings={"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        processor={"image_seq_len": 4},
        tokens=("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *TILES),
        **more,
    )


def pixtral(alias: str, **changes: Any) -> Published:
    tokens = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    return Published(
        alias=alias,
        config={
            "text_config": {**LLAMA, "model_type": "mistral"},
            "vision_config": PIXTRAL,
            "image_token_index": "$[IMG]",
            **changes,
        },
        image="[IMG]",
        settings={"size": {"longest_edge": 56}, "patch_size": 14},
        processor={"patch_size": 14, "spatial_merge_size": changes.get("spatial_merge_size", 1), **tokens},
        tokens=tuple(tokens.values()),
        needs="torchvision",
    )


def llava(alias: str, settings: Mapping[str, Any], **changes: Any) -> Published:
    config = {"text_config": LLAMA, "vision_config": CLIP, "image_token_index": "$<image>", **changes}
    return Published(
        alias=alias,
        config=config,
        image="<image>",
        settings={"size": {"shortest_edge": 28}, "crop_size": SQUARE, **settings},
        processor={"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        tokens=("<image>", "<video>"),
    )


def blip(alias: str, text: Mapping[str, Any]) -> Published:
    qformer = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "encoder_hidden_size": 32, "vocab_size": VOCAB_SIZE,
    }  # fmt: skip
    return Published(
        alias=alias,
        config={
            "text_config": text,
            "vision_config": TOWER,
            "qformer_config": qformer,
            "num_query_tokens": 4,
            "image_token_index": "$<image>",
        },
        image="",
        settings={"size": SQUARE},
        processor={"num_query_tokens": 4},
        tokens=("<image>",),
    )


HYBRID = {
    "rope_parameters": {**MROPE, "mrope_interleaved": True},
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
"""Qwen3.5's decoder: one layer of each kind."""
FAMILIES: Mapping[str, Published] = {
    "qwen2_vl": qwen("qwen2-vl-2b", {"rope_parameters": MROPE}, {"embed_dim": 32, "mlp_ratio": 2}),
    "qwen2_5_vl": qwen(
        "qwen2.5-vl-3b",
        {"rope_parameters": MROPE},
        {"window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2},
    ),
    "qwen3_5": qwen(
        "qwen3.5-0.8b",
        HYBRID,
        {"patch_size": 16, "num_position_embeddings": 16},
        size={"shortest_edge": 1024, "longest_edge": 64 * 64},
        patch_size=16,
    ),
    "qwen3_5_moe": qwen(
        "qwen3.5-35b-a3b",
        {
            **HYBRID,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        {"patch_size": 16, "num_position_embeddings": 16},
        size={"shortest_edge": 1024, "longest_edge": 64 * 64},
        patch_size=16,
    ),
    "qwen3_vl": qwen(
        "qwen3-vl-2b",
        {"rope_parameters": {**MROPE, "mrope_interleaved": True}},
        {"patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        size={"shortest_edge": 1024, "longest_edge": 64 * 64},
        patch_size=16,
    ),
    "qwen3_vl_moe": qwen(
        "qwen3-vl-30b-a3b",
        {
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,  # no expert is square, so that its shape tells which way round it is stored
            "decoder_sparse_step": 1,
        },
        {"patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        size={"shortest_edge": 1024, "longest_edge": 64 * 64},
        patch_size=16,
    ),
    "qwen2_5_omni_thinker": omni(
        "qwen2.5-omni-7b",
        {"rope_parameters": MROPE},
        {"window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2},
    ),
    "qwen3_omni_moe_thinker": omni(
        "qwen3-omni-30b-a3b",
        {
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
        {"patch_size": 16, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        patch_size=16,
    ),
    "glm4v": glm4v("glm-4.1v-9b"),
    "glm4v_moe": glm4v("glm-4.5v", n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
    "internvl": Published(
        alias="internvl3-1b",
        config={
            "text_config": QWEN2,
            "vision_config": {**TOWER, "image_size": [28, 28], "patch_size": [14, 14]},
            "downsample_ratio": 1.0,
            "image_seq_length": 4,
            "image_token_id": "$<IMG_CONTEXT>",
        },
        image="<IMG_CONTEXT>",
        settings={"size": SQUARE, "max_patches": 4, "crop_to_patches": True},
        processor={"image_seq_length": 4},
        named_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "llava": llava("llava-1.5-7b", {}),
    "pixtral": pixtral(
        "pixtral-12b", model_type="llava", vision_feature_layer=-1, vision_feature_select_strategy="full"
    ),
    "llava_next": llava("llava-v1.6-mistral-7b", {"image_grid_pinpoints": GRID}, image_grid_pinpoints=GRID),
    "llava_onevision": Published(
        alias="llava-onevision-0.5b",
        config={
            "text_config": QWEN2,
            "vision_config": SIGLIP,
            "image_grid_pinpoints": GRID,
            "image_token_index": "$<image>",
            "video_token_index": "$<video>",
        },
        image="<image>",
        settings={"size": SQUARE, "image_grid_pinpoints": GRID},
        processor={"num_image_tokens": 4, "vision_feature_select_strategy": "full"},
        tokens=("<image>", "<video>"),
    ),
    "gemma3": Published(
        alias="gemma-3-4b",
        config={
            "text_config": {"model_type": "gemma3_text", **TEXT},
            "vision_config": SIGLIP,
            "mm_tokens_per_image": 4,
            "image_token_index": "$<image_soft_token>",
            "boi_token_index": "$<start_of_image>",
            "eoi_token_index": "$<end_of_image>",
        },
        image="<start_of_image>",
        settings={"size": SQUARE, "image_seq_length": 4},
        processor={"image_seq_length": 4},
        named_tokens={
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
        },
    ),
    "paligemma": Published(
        alias="paligemma-3b",
        config={
            "text_config": {"model_type": "gemma", **TEXT},
            "vision_config": {**SIGLIP, "projection_dim": 32},
            "projection_dim": 32,
            "image_token_index": "$<image>",
        },
        image="<image>",
        settings={"image_processor_type": "SiglipImageProcessor", "size": SQUARE, "image_seq_length": 4},
        tokens=("<image>",),
    ),
    "idefics3": smolvlm("smolvlm-256m"),
    "smolvlm": smolvlm("smolvlm2-256m", needs="num2words"),
    "mistral3": pixtral("mistral-small-3.1-24b", spatial_merge_size=2),
    "ovis2": Published(
        alias="ovis2-1b",
        config={
            "text_config": QWEN2,
            "vision_config": {**TOWER, "vocab_size": 64, "num_visual_indicator_tokens": 5, "hidden_stride": 2},
            "hidden_size": 32,
            "vocab_size": VOCAB_SIZE,
            "image_token_id": "$<IMG_ATOM>",
            "visual_indicator_token_ids": [f"${token}" for token in OVIS_TOKENS],
        },
        image="<image>",
        settings={"size": SQUARE, "max_patches": 2},
        processor={"image_seq_length": 1},
        tokens=("<image>", "<IMG_ATOM>", *OVIS_TOKENS),
    ),
    "mllama": Published(
        alias="llama-3.2-11b-vision",
        config={
            "text_config": {
                "model_type": "mllama_text_model",
                **TEXT,
                "cross_attention_layers": [1],
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
                "intermediate_layers_indices": [0],
                "vision_output_dim": 64,
                "max_num_tiles": 4,
            },
            "image_token_index": "$<|image|>",
        },
        image="<|image|>",
        settings={"size": SQUARE, "max_image_tiles": 4},
        tokens=("<|image|>", "<|python_tag|>"),
    ),
    "blip-2": blip(
        "blip2-opt-2.7b",
        {
            "model_type": "opt",
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "word_embed_proj_dim": 32,
            "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": 512,
            "pad_token_id": 1,
        },
    ),
    "instructblip": blip("instructblip-vicuna-7b", LLAMA),
    "idefics2": Published(
        alias="idefics2-8b",
        config={
            "text_config": {**LLAMA, "model_type": "mistral"},
            "vision_config": TOWER,
            "image_token_id": "$<image>",
            "perceiver_config": {
                "hidden_size": 32,
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 2,
                "resampler_head_dim": 16,
                "num_key_value_heads": 1,
            },
        },
        image="<image>",
        settings={"size": {"shortest_edge": 28, "longest_edge": 56}, "do_image_splitting": False},
        processor={"image_seq_len": 4},
        tokens=("<fake_token_around_image>", "<image>", "<end_of_utterance>"),
    ),
}


def write_published(folder: Path, family: str, said: Published | None = None) -> Path:
    """Write the files of ``family`` in small into ``folder``, which is made; returns ``folder``."""
    said = said or FAMILIES[family]
    folder.mkdir(parents=True)
    tokenizer = _tokenizer(said)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    if family == "instructblip":
        tiny_tokenizer("llama").save_pretrained(folder / "qformer_tokenizer")
    published = PACKAGED_MODELS / said.alias / "preprocessor_config.json"
    settings = (json.loads(published.read_text()) if published.exists() else {}) | dict(said.settings)
    classes = json.loads((folder / "tokenizer_config.json").read_text())
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    config = _with_ids(_typed(said, family), tokenizer)
    processor_class = settings.get("processor_class") or PROCESSOR_MAPPING_NAMES[config["model_type"]]
    files = {
        "preprocessor_config.json": settings,
        "tokenizer_config.json": classes | {"processor_class": processor_class},
        "generation_config.json": GENERATION,
    }
    if said.processor:
        files["processor_config.json"] = {"processor_class": processor_class, **said.processor}
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=2))
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("IMAGE", said.image))
    _write_weights(folder, config)
    return folder


TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}{{ 'IMAGE' if part.type == 'image' else part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def _typed(said: Published, family: str) -> dict[str, Any]:
    return {"model_type": family, "tie_word_embeddings": False, **said.config}


def _with_ids(value: Any, tokenizer: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_ids(each, tokenizer) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_ids(each, tokenizer) for each in value]
    if isinstance(value, str) and value.startswith("$"):
        return tokenizer.convert_tokens_to_ids(value[1:])
    return value


def _tokenizer(said: Published) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokenizer = tiny_tokenizer("qwen2_vl")
    tokenizer.add_tokens([*said.tokens, *said.named_tokens.values()], special_tokens=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=dict(said.named_tokens),
    )


def _write_weights(folder: Path, config: Mapping[str, Any]) -> None:
    """config.json as given, with its class, and weights of it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

    from vlmplan_trainer.probe import CAUSAL_TYPES_WITH_IMAGES

    path = folder / "config.json"
    path.write_text(json.dumps(config))
    torch.manual_seed(0)
    is_causal = config["model_type"] in CAUSAL_TYPES_WITH_IMAGES
    auto_class = AutoModelForCausalLM if is_causal else AutoModelForImageTextToText
    model = auto_class.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    said = (folder / "generation_config.json").read_text()
    model.generation_config = GenerationConfig()
    model.save_pretrained(folder)
    path.write_text(json.dumps({**config, "architectures": [type(model).__name__]}, indent=2))
    (folder / "generation_config.json").write_text(said)
