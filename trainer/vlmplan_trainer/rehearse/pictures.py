"""Pictures of a rehearsed micro batch, as each family's forward takes them: grids, masks and pixels by shape.

What an image becomes (tokens, patches, tiles) is the planner's ``ImageShape``, which is held to transformers' own
processors.
"""

from collections.abc import Callable, Mapping
from math import isqrt, prod
from typing import Any

import torch

from vlmplan_trainer.rehearse.canvas import write_sequences_apart
from vlmplan_trainer.rehearse.pictures_of_batch import Made, Pictures

FIRST_IMAGE = 4
"""Tokens of text before the first image."""
GRID_TYPES = (
    *(
        "cohere_compass",
        "cosmos3_omni",
        "glm46v",
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "glmga",
        "hunyuan_vl",
        "paddleocr_vl",
    ),
    *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"),
)
UNTYPED_GRID_TYPES = ("exaone4_5", "hyperclovax_vision_v2", "kimi_k25", "lfm3_vl", "muse_glimmer")
"""Whose processors do not say of each token what it is of (``return_mm_token_type_ids``)."""
THINKER_TYPES = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
SQUARE_TYPES = (
    *(
        "deepseek_vl",
        "deepseek_vl_hybrid",
        "fast_vlm",
        "gemma3",
        "gemma3n",
        "got_ocr2",
        "janus",
        "lighton_ocr",
        "llava",
        "mistral3",
        "paligemma",
    ),
    *("pp_chart2table", "video_llava", "vipllava"),
)
TILE_TYPES = ("aya_vision", "cohere2_vision", "internvl", "ovis2", "qianfan_ocr")


def takes_pictures(model_type: str) -> bool:
    return model_type in _FAMILIES


def needs_pictures(model_type: str) -> bool:
    """Whether the model's class takes no text alone."""
    return _FAMILIES.get(model_type) is _queries


def picture_inputs(pictures: Pictures) -> Made:
    """What the processor hands to the model of ``pictures`` beside their tokens."""
    return _FAMILIES[pictures.config.model_type](pictures)


def _grids(pictures: Pictures) -> Made:
    """Patches at native resolution, one row each (Qwen2VLImageProcessor): channels x frames x side x side values, or
    one small picture (PaddleOCR-VL)."""
    image, vision = pictures.image, pictures.vision
    channels, side = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3), vision.patch_size
    takes_frames = hasattr(type(vision), "temporal_patch_size")  # PaddleOCR-VL's files have the key beside their class
    num_frames = vision.temporal_patch_size if takes_frames else getattr(vision, "patch_temporal", None)
    patch = (channels, side, side) if num_frames is None else (channels * num_frames * side**2,)
    grid = [1, image.num_patch_rows, image.num_patch_columns]
    values = {"image_grid_thw": torch.tensor([grid] * pictures.count)}
    num_patches = image.num_patch_rows * image.num_patch_columns
    return values, {"pixel_values": (pictures.count * num_patches, *patch)}


def _grids_of_clips(pictures: Pictures) -> Made:
    """The grids of images, or of whole videos (LFM3-VL)."""
    image = pictures.image
    if not image.is_clip:
        return _grids(pictures)
    grid = [image.num_vision_sequences, image.num_patch_rows, image.num_patch_columns]
    vision = pictures.vision
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = (pictures.count * grid[0] * grid[1] * grid[2], patch)
    return {"video_grid_thw": torch.tensor([grid] * pictures.count)}, {"pixel_values_videos": pixels}


def _grids_with_merge_sizes(pictures: Pictures) -> Made:
    """The same with the patches of a feature's side (VideoLLaMA 3)."""
    values, shapes = _grids(pictures)
    image = pictures.image
    side = isqrt(image.num_patch_rows * image.num_patch_columns // image.num_placeholder_tokens)
    return values | {"image_merge_sizes": torch.full((pictures.count,), side)}, shapes


def _typed_grids(pictures: Pictures) -> Made:
    """The same with ``mm_token_type_ids``."""
    values, shapes = _grids(pictures)
    return values | {"mm_token_type_ids": pictures.are_features.long()}, shapes


def _mixed_grids(pictures: Pictures) -> Made:
    """The same with the tokens around each image among those of images, as its experts get them, and a row of values
    for each patch (ERNIE 4.5 VL)."""
    values, shapes = _typed_grids(pictures)
    shapes = {name: (patches, prod(patch)) for name, (patches, *patch) in shapes.items()}
    kinds = pictures.are_features.long()
    around = kinds.clone()
    around[:, 1:] |= kinds[:, :-1]
    around[:, :-1] |= kinds[:, 1:]
    return values | {"moe_mm_token_type_ids": around}, shapes


def _grids_of_thinkers(pictures: Pictures) -> Made:
    """The grids, where a thinker looks for the tokens before images."""
    values, shapes = _grids(pictures)
    is_image = pictures.are_features
    begins = is_image[:, 1:] & ~is_image[:, :-1]
    pictures.ids[:, :-1][begins] = pictures.config.vision_start_token_id
    return values, shapes


def _tiles(pictures: Pictures) -> Made:
    """Square tiles (InternVL, Ovis 2, Aya Vision, Command A Vision)."""
    image = pictures.image
    patch = _side(pictures.vision.patch_size)
    sides = (image.num_patch_rows * patch, image.num_patch_columns * patch)
    if pictures.config.model_type == "ovis2":
        _put_indicators(pictures)
    return {}, {"pixel_values": (pictures.count * image.num_vision_sequences, 3, *sides)}


def _put_indicators(pictures: Pictures) -> None:
    """Start, grid, between columns, between rows, end, as often as ``Ovis2Processor`` writes them."""
    image = pictures.image
    columns, rows = image.num_tile_columns, image.num_tile_rows
    counts = [1, 1, rows * (columns - 1), rows - 1, 1]
    names = pictures.config.visual_indicator_token_ids
    tokens = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    tokens *= pictures.per_sample
    pictures.ids[:, -len(tokens) :] = torch.tensor(tokens)


def _squares(pictures: Pictures) -> Made:
    """One picture each, resized (LLaVA, Pixtral, Mistral 3, LightOnOCR, PaliGemma, Gemma 3 and 3n, GOT-OCR 2)."""
    image = pictures.image
    values = {}
    if pictures.vision.model_type == "pixtral":
        values["image_sizes"] = torch.tensor([[image.resized_height, image.resized_width]] * pictures.count)
    elif pictures.config.model_type == "paligemma":
        values["token_type_ids"] = torch.zeros_like(pictures.ids)
        values["token_type_ids"][:, pictures.ids.shape[1] // 2 :] = 1
    elif pictures.config.model_type in ("gemma3", "gemma3n"):
        values["token_type_ids"] = pictures.are_features.long()
    shapes: dict[str, tuple[int, ...]] = {
        "pixel_values": (pictures.count, 3, image.resized_height, image.resized_width)
    }
    if pictures.config.model_type == "deepseek_vl_hybrid":
        side = _side(pictures.config.high_res_vision_config.image_size)
        shapes["high_res_pixel_values"] = (pictures.count, 3, side, side)
    return values, shapes


def _whole_and_tiles(pictures: Pictures) -> Made:
    """Whole images, and all tiles of all images where they have some (DeepSeek-OCR 2)."""
    image, patch = pictures.image, _side(pictures.vision.sam_config.patch_size)
    num_tiles = image.num_vision_sequences - 1
    side = (image.num_overview_columns or image.num_patch_columns) * patch
    shapes: dict[str, tuple[int, ...]] = {"pixel_values": (pictures.count, 3, side, side)}
    if num_tiles:
        side = image.num_patch_columns * patch
        shapes["pixel_values_local"] = (pictures.count * num_tiles, 3, side, side)
    return {"num_local_patches": torch.full((pictures.count,), num_tiles)}, shapes


def _padded_patches(pictures: Pictures) -> Made:
    """Patches with their columns and rows, filled up to one number of patches for all images (Gemma 4)."""
    image = pictures.image
    columns, rows = torch.arange(image.num_patch_columns), torch.arange(image.num_patch_rows)
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1).reshape(-1, 2)
    places = torch.cat([grid, torch.full((image.num_padding_patches, 2), -1)])
    places = places.repeat(pictures.count * image.num_vision_sequences, 1, 1)
    types = pictures.are_features.long()
    side = getattr(pictures.vision, "model_patch_size", pictures.vision.patch_size)
    pixels = (*places.shape[:2], 3 * side**2)
    if not image.is_clip:
        return {"image_position_ids": places, "mm_token_type_ids": types}, {"pixel_values": pixels}
    frames = {"num_frames_per_video": torch.full((pictures.count,), image.num_vision_sequences)}
    return {"video_position_ids": places, "mm_token_type_ids": 2 * types} | frames, {"pixel_values_videos": pixels}


def _packed_patches(pictures: Pictures) -> Made:
    """Patches of the whole image and of its slices, or of each frame, all side by side in one row (MiniCPM-V)."""
    image = pictures.image
    sizes = [[image.num_patch_rows, image.num_patch_columns]] * (image.num_vision_sequences // image.num_frames)
    if image.num_overview_columns:
        sizes[0] = [image.num_overview_rows, image.num_overview_columns]
    num_shown = pictures.count * image.num_frames
    num_patches = sum(rows * columns for rows, columns in sizes) * num_shown
    side, of = pictures.vision.patch_size, "_videos" if image.is_clip else ""
    values = {f"target_sizes{of}": torch.tensor(sizes * num_shown, dtype=torch.int32)}
    if pictures.config.model_type == "minicpmv4_7":
        num_merged = num_patches // (image.num_placeholder_tokens * pictures.count)
        columns, frames = image.num_tile_columns, image.num_frames
        write_sequences_apart(
            pictures.config, pictures.ids, pictures.token, sizes, num_merged, num_columns=columns, num_frames=frames
        )
        values["mm_token_type_ids"] = pictures.are_features.long() * (2 if image.is_clip else 1)
    return values, {f"pixel_values{of}": (1, pictures.vision.num_channels, side, side * num_patches)}


def _lfm2_vl(pictures: Pictures) -> Made:
    """Patches of tiles and of the whole image behind them, or of an image alone, filled up to one number for all."""
    image = pictures.image
    own = [image.num_patch_rows, image.num_patch_columns]
    shapes = [own] * image.num_vision_sequences
    if image.num_unpadded_rows:
        shapes[-1] = [image.num_unpadded_rows, image.num_unpadded_columns]
    num_patches = own[0] * own[1] + image.num_padding_patches
    spatial = torch.tensor(shapes * pictures.count)
    mask = (torch.arange(num_patches) < spatial.prod(dim=1)[:, None]).int()
    values = {"pixel_attention_mask": mask, "spatial_shapes": spatial}
    return values, {"pixel_values": (len(spatial), num_patches, 3 * pictures.vision.patch_size**2)}


def _llama4(pictures: Pictures) -> Made:
    """Square tiles of all images in one tensor."""
    image = pictures.image
    side = pictures.vision.image_size
    return {}, {"pixel_values": (pictures.count * image.num_vision_sequences, 3, side, side)}


def _anyres(pictures: Pictures) -> Made:
    """Tiles of the best grid and a thumbnail (LLaVA-NeXT, LLaVA-OneVision)."""
    image = pictures.image
    side = pictures.vision.image_size
    if image.is_clip:
        return {}, {"pixel_values_videos": (pictures.count, image.num_vision_sequences, 3, side, side)}
    values = {"image_sizes": torch.tensor([[pictures.samples.height, pictures.samples.width]] * pictures.count)}
    if pictures.config.model_type == "llava_onevision":
        values["batch_num_images"] = torch.tensor([pictures.per_sample] * pictures.micro_batch)
    return values, {"pixel_values": (pictures.count, image.num_vision_sequences, 3, side, side)}


def _idefics3(pictures: Pictures) -> Made:
    """Tiles with a mask of their real pixels (Idefics 3, SmolVLM)."""
    image = pictures.image
    patch = _side(pictures.vision.patch_size)
    sides = (image.num_patch_rows * patch, image.num_patch_columns * patch)
    per_sample = pictures.per_sample * image.num_vision_sequences
    mask = torch.ones(pictures.micro_batch, per_sample, *sides, dtype=torch.int64)
    return {"pixel_attention_mask": mask}, {"pixel_values": (pictures.micro_batch, per_sample, 3, *sides)}


def _aria(pictures: Pictures) -> Made:
    """Squares with a mask of what is no padding, below the image or beside it."""
    image, count = pictures.image, pictures.count
    side = image.resized_height
    mask = torch.ones(count, side, side, dtype=torch.bool)
    if image.has_padded_sequences:
        mask[:, side // 2 :] = False
    return {"pixel_mask": mask}, {"pixel_values": (count, 3, side, side)}


def _granite_docling(pictures: Pictures) -> Made:
    """Square tiles with a mask of those that are no padding, and one of samples on the fine route."""
    image, side = pictures.image, _side(pictures.vision.image_size)
    per_sample = pictures.per_sample * image.num_vision_sequences
    values = {"pixel_attention_mask": torch.ones(pictures.micro_batch, per_sample, dtype=torch.bool)}
    num_patches = image.num_patch_rows * image.num_patch_columns
    coarse = image.num_vision_sequences * num_patches // pictures.vision.scale_factor**2
    if image.num_placeholder_tokens > coarse:
        values["tile_fine_mask"] = torch.ones(pictures.micro_batch, dtype=torch.bool)
    return values, {"pixel_values": (pictures.micro_batch, per_sample, 3, side, side)}


def _idefics2(pictures: Pictures) -> Made:
    """Pictures at about their own size, the image and its quarters, padded to the largest."""
    image = pictures.image
    height, width = image.resized_height, image.resized_width
    per_sample = pictures.per_sample * image.num_vision_sequences
    mask = torch.ones(pictures.micro_batch, per_sample, height, width, dtype=torch.int64)
    if image.has_padded_sequences:
        mask[:, 0, height // 2 :] = 0
    return {"pixel_attention_mask": mask}, {"pixel_values": (pictures.micro_batch, per_sample, 3, height, width)}


def _molmo2(pictures: Pictures) -> Made:
    """Crops of all images in one tensor, and which patches become each token; where some pool fewer, the first does."""
    image, num_pooled = pictures.image, 4
    num_tokens, num_crops = pictures.count * image.num_placeholder_tokens, image.num_vision_sequences
    num_patches = image.num_patch_rows * image.num_patch_columns
    pooled = torch.arange(num_tokens * num_pooled, dtype=torch.int32) % (pictures.count * num_crops * num_patches)
    if image.has_padded_sequences:
        pooled[0] = -1
    grid = [1, image.num_placeholder_tokens, 0, 0]
    values = {
        "image_token_pooling": pooled.reshape(num_tokens, num_pooled),
        "image_grids": torch.tensor([grid] * pictures.count),
        "image_num_crops": torch.full((pictures.count,), num_crops),
    }
    side = pictures.vision.patch_size
    return values, {"pixel_values": (pictures.count * num_crops, num_patches, pictures.vision.num_channels * side**2)}


def _mllama(pictures: Pictures) -> Made:
    """All tiles of every image, those that it does not fill too; text from the first image's marker on sees them."""
    image = pictures.image
    vision, each = pictures.vision, (pictures.micro_batch, pictures.per_sample)
    num_filled = image.num_tile_rows * image.num_tile_columns
    ratio = vision.supported_aspect_ratios.index([image.num_tile_rows, image.num_tile_columns])
    tiles = torch.arange(image.num_vision_sequences) < num_filled
    seen = torch.zeros(*pictures.ids.shape, pictures.per_sample, image.num_vision_sequences, dtype=torch.int64)
    seen[:, FIRST_IMAGE:, :, :num_filled] = 1
    values = {
        "aspect_ratio_ids": torch.full(each, 1 + ratio),
        "aspect_ratio_mask": tiles.long().expand(*each, -1).contiguous(),
        "cross_attention_mask": seen,
    }
    side = vision.image_size
    return values, {"pixel_values": (*each, image.num_vision_sequences, 3, side, side)}


def _phi4_multimodal(pictures: Pictures) -> Made:
    """The whole of each image and its tiles behind it, with a mask of patches that do not only cover white: floats."""
    image, vision = pictures.image, pictures.vision
    rows, columns = image.num_tile_rows, image.num_tile_columns
    height, width = image.num_patch_rows, image.num_patch_columns
    # The first of each two patches of the last row and column says whether their feature is used.
    used_rows = _used(rows, height, image.num_unpadded_rows)
    used_columns = _used(columns, width, image.num_unpadded_columns)
    mask = (used_rows[:, None] & used_columns).float()
    tiles = mask.reshape(rows, height, columns, width).transpose(1, 2).reshape(-1, height, width)
    masks = torch.cat([torch.ones(1, height, width), tiles])
    values = {
        "image_sizes": torch.tensor([[image.resized_height, image.resized_width]] * pictures.count),
        "image_attention_mask": masks.repeat(pictures.count, 1, 1, 1),
    }
    sides = (image.resized_height // rows, image.resized_width // columns)
    return values, {"image_pixel_values": (pictures.count, image.num_vision_sequences, vision.num_channels, *sides)}


def _used(num_tiles: int, num_patches: int, num_features: int) -> torch.Tensor:
    """Which patches of a row of tiles are before the end of the last feature, one for two patches of a tile."""
    places = torch.arange(num_patches) // 2
    per_tile = (num_patches + 1) // 2
    return (places + per_tile * torch.arange(num_tiles)[:, None] < num_features).flatten()


def _queries(pictures: Pictures) -> Made:
    """One picture each for a Q-Former, InstructBLIP's with the text (BLIP-2, InstructBLIP)."""
    image = pictures.image
    values = {}
    if pictures.config.model_type == "instructblip":
        values["qformer_input_ids"] = pictures.ids[:, image.num_tokens * pictures.per_sample :].clone()
        values["qformer_attention_mask"] = torch.ones_like(values["qformer_input_ids"])
    return values, {"pixel_values": (pictures.count, 3, image.resized_height, image.resized_width)}


def _side(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


_FAMILIES: Mapping[str, Callable[[Pictures], Made]] = {
    **dict.fromkeys(GRID_TYPES, _typed_grids),
    **dict.fromkeys(UNTYPED_GRID_TYPES, _grids_of_clips),
    **dict.fromkeys(THINKER_TYPES, _grids_of_thinkers),
    **dict.fromkeys(TILE_TYPES, _tiles),
    **dict.fromkeys(SQUARE_TYPES, _squares),
    **dict.fromkeys(("granite4_vision", "llava_next", "llava_next_video", "llava_onevision"), _anyres),
    **dict.fromkeys(("idefics3", "smolvlm"), _idefics3),
    **dict.fromkeys(("blip-2", "instructblip"), _queries),
    **dict.fromkeys(("gemma4", "gemma4_unified"), _padded_patches),
    "aria": _aria,
    "deepseek_ocr2": _whole_and_tiles,
    "ernie4_5_vl_moe": _mixed_grids,
    "granite_docling": _granite_docling,
    "idefics2": _idefics2,
    "lfm2_vl": _lfm2_vl,
    "llama4": _llama4,
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), _packed_patches),
    "mllama": _mllama,
    "molmo2": _molmo2,
    "video_llama_3": _grids_with_merge_sizes,
    "phi4_multimodal": _phi4_multimodal,
}
