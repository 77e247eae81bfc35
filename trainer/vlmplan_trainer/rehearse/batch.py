"""A micro batch as the plan's samples would give it: real token ids with places for images, pixels by shape alone.

What an image becomes (tokens, patches, tiles) is the planner's ``ImageShape``, which is held to transformers' own
processors; here it is only laid out as each family's forward takes it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vlmplan.errors import InputError
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.processors.image_encoder import encodes_images_alone
from vlmplan_trainer.rehearse.canvas import write_sequences_apart
from vlmplan_trainer.rehearse.processed import as_processed, for_image_encoder
from vlmplan_trainer.rehearse.rows import answers, laid_out, pairs
from vlmplan_trainer.rehearse.samples import ImageSpec, MicroBatch, Samples
from vlmplan_trainer.rehearse.sounds import audio_token, sound_inputs, with_sounds

FIRST_IMAGE = 4
"""Tokens of text before the first image."""
BETWEEN_IMAGES = 2
"""... and between images, if there are so many: what chat templates write around each."""
TEXT_TOKENS = 60
"""Ids that text is made of, from 5 on, the images' own left out."""
GRID_TYPES = (
    *("cosmos3_omni", "glm46v", "glm4v", "glm4v_moe", "glm_ocr", "paddleocr_vl"),
    *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"),
)
UNTYPED_GRID_TYPES = ("exaone4_5", "lfm3_vl")
"""Whose processors do not say of each token what it is of (``return_mm_token_type_ids``)."""
THINKER_TYPES = ("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
TYPED_SOUNDS = {"gemma3n": "token_type_ids", **dict.fromkeys(("gemma4", "gemma4_unified"), "mm_token_type_ids")}
"""What the processors say in of each token of a sample with sound what it is of."""
TILE_TYPES = ("aya_vision", "cohere2_vision", "internvl", "ovis2")


def micro_batch(config: Any, samples: Samples, preprocessor: Mapping[str, Any] | None = None) -> MicroBatch:
    """What the data loader hands to the loop. ``config`` is transformers' own; ``preprocessor`` are the settings of its
    image processor, which is asked where no function here says what it makes."""
    if encodes_images_alone(config):
        return for_image_encoder(config, samples, preprocessor)
    if samples.image is not None and config.model_type not in _FAMILIES:
        return as_processed(config, samples, preprocessor)
    if samples.target_tokens and samples.audio is not None:
        shapes = {"input_features": (samples.micro_batch, config.num_mel_bins, samples.audio.num_padded_frames)}
        return MicroBatch(answers(samples.micro_batch, samples.target_tokens), shapes)
    if samples.target_tokens:
        return MicroBatch(pairs(samples.micro_batch, samples.num_tokens, samples.target_tokens), {})
    token = _image_token(config, samples.image)
    ids = _token_ids(config, samples, token)
    labels = ids.clone()
    labels[:, : ids.shape[1] // 2] = IGNORED_LABEL
    labels[ids == token] = IGNORED_LABEL
    values, shapes = {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}, {}
    if samples.audio is not None:
        labels[ids == audio_token(config)] = IGNORED_LABEL
        num_audios = samples.micro_batch * samples.audios_per_sample
        more, shapes = sound_inputs(config, samples.audio, num_audios)
        values |= more
        if config.model_type in TYPED_SOUNDS and samples.image is None:
            values[TYPED_SOUNDS[config.model_type]] = torch.zeros_like(ids)
    if samples.image is not None:
        more, of_images = _FAMILIES[config.model_type](config, samples, samples.image, ids, token)
        values, shapes = values | more, shapes | of_images
    return MicroBatch(laid_out(values, samples.sequences), shapes)


def _image_token(config: Any, image: ImageSpec | None) -> int | None:
    """The id that features take the place of; SmolVLM's is that of images and videos."""
    if image is None:
        return None
    if image.is_clip and config.model_type != "smolvlm":
        return int(config.video_token_id)
    for section in (config, getattr(config, "vision_config", None)):
        for key in ("image_token_id", "image_token_index"):
            value = getattr(section, key, None)
            if value is not None:
                return int(value)
    raise InputError(f"the configuration of {config.model_type} has no image_token_id")


def _token_ids(config: Any, samples: Samples, token: int | None) -> torch.Tensor:
    """(micro_batch, tokens): text, then every image's placeholders with the rest of its tokens as text around them, and
    sounds at the end."""
    num_sound_tokens = 0 if samples.audio is None else samples.audio.num_tokens * samples.audios_per_sample
    row = torch.arange(samples.num_tokens - num_sound_tokens) % TEXT_TOKENS + 5
    if token is not None:
        row[row == token] += 1
        assert samples.image is not None
        num_text = len(row) - samples.image.num_tokens * samples.images_per_sample
        between = min(BETWEEN_IMAGES, num_text // samples.images_per_sample)
        place = min(FIRST_IMAGE, num_text - between * (samples.images_per_sample - 1))
        for _ in range(samples.images_per_sample):
            row[place : place + samples.image.num_placeholder_tokens] = token
            place += samples.image.num_tokens + between
    if samples.audio is not None:
        row = with_sounds(config, row, samples.audio, samples.audios_per_sample)
    return row.repeat(samples.micro_batch, 1)


Made = tuple[dict[str, torch.Tensor], dict[str, tuple[int, ...]]]


def _grids(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Patches at native resolution, one row each (Qwen2VLImageProcessor): channels x frames x side x side values, or
    one small picture (PaddleOCR-VL)."""
    vision = config.vision_config
    channels, side = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3), vision.patch_size
    num_frames = getattr(vision, "temporal_patch_size", None)
    patch = (channels, side, side) if num_frames is None else (channels * num_frames * side**2,)
    grid = [1, image.num_patch_rows, image.num_patch_columns]
    values = {"image_grid_thw": torch.tensor([grid] * samples.num_images)}
    num_patches = image.num_patch_rows * image.num_patch_columns
    return values, {"pixel_values": (samples.num_images * num_patches, *patch)}


def _grids_of_clips(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """The grids of images, or of whole videos (LFM3-VL)."""
    if not image.is_clip:
        return _grids(config, samples, image, ids, token)
    grid = [image.num_vision_sequences, image.num_patch_rows, image.num_patch_columns]
    vision = config.vision_config
    patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = (samples.num_images * grid[0] * grid[1] * grid[2], patch)
    return {"video_grid_thw": torch.tensor([grid] * samples.num_images)}, {"pixel_values_videos": pixels}


def _typed_grids(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """The same with ``mm_token_type_ids``."""
    values, shapes = _grids(config, samples, image, ids, token)
    return values | {"mm_token_type_ids": (ids == token).long()}, shapes


def _grids_of_thinkers(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """The grids, where a thinker looks for the tokens before images."""
    values, shapes = _grids(config, samples, image, ids, token)
    is_image = ids == token
    begins = is_image[:, 1:] & ~is_image[:, :-1]
    ids[:, :-1][begins] = config.vision_start_token_id
    return values, shapes


def _tiles(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Square tiles (InternVL, Ovis 2, Aya Vision, Command A Vision)."""
    patch = _side(config.vision_config.patch_size)
    sides = (image.num_patch_rows * patch, image.num_patch_columns * patch)
    if config.model_type == "ovis2":
        _put_indicators(config, samples, image, ids)
    return {}, {"pixel_values": (samples.num_images * image.num_vision_sequences, 3, *sides)}


def _put_indicators(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor) -> None:
    """Start, grid, between columns, between rows, end, as often as ``Ovis2Processor`` writes them."""
    columns, rows = image.num_tile_columns, image.num_tile_rows
    counts = [1, 1, rows * (columns - 1), rows - 1, 1]
    names = config.visual_indicator_token_ids
    tokens = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    tokens *= samples.images_per_sample
    ids[:, -len(tokens) :] = torch.tensor(tokens)


def _squares(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """One picture each, resized (LLaVA, Pixtral, Mistral 3, LightOnOCR, PaliGemma, Gemma 3 and 3n)."""
    values = {}
    if config.vision_config.model_type == "pixtral":
        values["image_sizes"] = torch.tensor([[image.resized_height, image.resized_width]] * samples.num_images)
    elif config.model_type == "paligemma":
        values["token_type_ids"] = torch.zeros_like(ids)
        values["token_type_ids"][:, ids.shape[1] // 2 :] = 1
    elif config.model_type in ("gemma3", "gemma3n"):
        values["token_type_ids"] = (ids == token).long()
    return values, {"pixel_values": (samples.num_images, 3, image.resized_height, image.resized_width)}


def _padded_patches(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Patches with their columns and rows, filled up to one number of patches for all images (Gemma 4)."""
    columns, rows = torch.arange(image.num_patch_columns), torch.arange(image.num_patch_rows)
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), dim=-1).reshape(-1, 2)
    places = torch.cat([grid, torch.full((image.num_padding_patches, 2), -1)])
    places = places.repeat(samples.num_images * image.num_vision_sequences, 1, 1)
    types = (ids == token).long()
    side = getattr(config.vision_config, "model_patch_size", config.vision_config.patch_size)
    pixels = (*places.shape[:2], 3 * side**2)
    if not image.is_clip:
        return {"image_position_ids": places, "mm_token_type_ids": types}, {"pixel_values": pixels}
    frames = {"num_frames_per_video": torch.full((samples.num_images,), image.num_vision_sequences)}
    return {"video_position_ids": places, "mm_token_type_ids": 2 * types} | frames, {"pixel_values_videos": pixels}


def _packed_patches(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Patches of the whole image and of its slices, or of each frame, all side by side in one row (MiniCPM-V)."""
    sizes = [[image.num_patch_rows, image.num_patch_columns]] * (image.num_vision_sequences // image.num_frames)
    if image.num_overview_columns:
        sizes[0] = [image.num_overview_rows, image.num_overview_columns]
    num_shown = samples.num_images * image.num_frames
    num_patches = sum(rows * columns for rows, columns in sizes) * num_shown
    side, of = config.vision_config.patch_size, "_videos" if image.is_clip else ""
    values = {f"target_sizes{of}": torch.tensor(sizes * num_shown, dtype=torch.int32)}
    if config.model_type == "minicpmv4_7":
        num_merged = num_patches // (image.num_placeholder_tokens * samples.num_images)
        columns, frames = image.num_tile_columns, image.num_frames
        write_sequences_apart(config, ids, token, sizes, num_merged, num_columns=columns, num_frames=frames)
        values["mm_token_type_ids"] = (ids == token).long() * (2 if image.is_clip else 1)
    return values, {f"pixel_values{of}": (1, config.vision_config.num_channels, side, side * num_patches)}


def _lfm2_vl(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Patches of tiles and of the whole image behind them, or of an image alone, filled up to one number for all."""
    own = [image.num_patch_rows, image.num_patch_columns]
    shapes = [own] * image.num_vision_sequences
    if image.num_unpadded_rows:
        shapes[-1] = [image.num_unpadded_rows, image.num_unpadded_columns]
    num_patches = own[0] * own[1] + image.num_padding_patches
    spatial = torch.tensor(shapes * samples.num_images)
    mask = (torch.arange(num_patches) < spatial.prod(dim=1)[:, None]).int()
    values = {"pixel_attention_mask": mask, "spatial_shapes": spatial}
    return values, {"pixel_values": (len(spatial), num_patches, 3 * config.vision_config.patch_size**2)}


def _llama4(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Square tiles of all images in one tensor."""
    side = config.vision_config.image_size
    return {}, {"pixel_values": (samples.num_images * image.num_vision_sequences, 3, side, side)}


def _anyres(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Tiles of the best grid and a thumbnail (LLaVA-NeXT, LLaVA-OneVision)."""
    side = config.vision_config.image_size
    if image.is_clip:
        return {}, {"pixel_values_videos": (samples.num_images, image.num_vision_sequences, 3, side, side)}
    values = {"image_sizes": torch.tensor([[samples.height, samples.width]] * samples.num_images)}
    if config.model_type == "llava_onevision":
        values["batch_num_images"] = torch.tensor([samples.images_per_sample] * samples.micro_batch)
    return values, {"pixel_values": (samples.num_images, image.num_vision_sequences, 3, side, side)}


def _idefics3(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Tiles with a mask of their real pixels (Idefics 3, SmolVLM)."""
    patch = _side(config.vision_config.patch_size)
    sides = (image.num_patch_rows * patch, image.num_patch_columns * patch)
    per_sample = samples.images_per_sample * image.num_vision_sequences
    mask = torch.ones(samples.micro_batch, per_sample, *sides, dtype=torch.int64)
    return {"pixel_attention_mask": mask}, {"pixel_values": (samples.micro_batch, per_sample, 3, *sides)}


def _idefics2(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """Pictures at about their own size, the image and its quarters, padded to the largest."""
    height, width = image.resized_height, image.resized_width
    per_sample = samples.images_per_sample * image.num_vision_sequences
    mask = torch.ones(samples.micro_batch, per_sample, height, width, dtype=torch.int64)
    if image.has_padded_sequences:
        mask[:, 0, height // 2 :] = 0
    return {"pixel_attention_mask": mask}, {"pixel_values": (samples.micro_batch, per_sample, 3, height, width)}


def _mllama(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """All tiles of every image, those that it does not fill too; text from the first image's marker on sees them."""
    vision, pictures = config.vision_config, (samples.micro_batch, samples.images_per_sample)
    num_filled = image.num_tile_rows * image.num_tile_columns
    ratio = vision.supported_aspect_ratios.index([image.num_tile_rows, image.num_tile_columns])
    tiles = torch.arange(image.num_vision_sequences) < num_filled
    seen = torch.zeros(*ids.shape, samples.images_per_sample, image.num_vision_sequences, dtype=torch.int64)
    seen[:, FIRST_IMAGE:, :, :num_filled] = 1
    values = {
        "aspect_ratio_ids": torch.full(pictures, 1 + ratio),
        "aspect_ratio_mask": tiles.long().expand(*pictures, -1).contiguous(),
        "cross_attention_mask": seen,
    }
    side = vision.image_size
    return values, {"pixel_values": (*pictures, image.num_vision_sequences, 3, side, side)}


def _phi4_multimodal(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """The whole of each image and its tiles behind it, with a mask of patches that do not only cover white: floats."""
    vision = config.vision_config
    rows, columns = image.num_tile_rows, image.num_tile_columns
    height, width = image.num_patch_rows, image.num_patch_columns
    # The first of each two patches of the last row and column says whether their feature is used.
    used_rows = _used(rows, height, image.num_unpadded_rows)
    used_columns = _used(columns, width, image.num_unpadded_columns)
    mask = (used_rows[:, None] & used_columns).float()
    tiles = mask.reshape(rows, height, columns, width).transpose(1, 2).reshape(-1, height, width)
    masks = torch.cat([torch.ones(1, height, width), tiles])
    values = {
        "image_sizes": torch.tensor([[image.resized_height, image.resized_width]] * samples.num_images),
        "image_attention_mask": masks.repeat(samples.num_images, 1, 1, 1),
    }
    sides = (image.resized_height // rows, image.resized_width // columns)
    return values, {"image_pixel_values": (samples.num_images, image.num_vision_sequences, vision.num_channels, *sides)}


def _used(num_tiles: int, num_patches: int, num_features: int) -> torch.Tensor:
    """Which patches of a row of tiles are before the end of the last feature, one for two patches of a tile."""
    places = torch.arange(num_patches) // 2
    per_tile = (num_patches + 1) // 2
    return (places + per_tile * torch.arange(num_tiles)[:, None] < num_features).flatten()


def _queries(config: Any, samples: Samples, image: ImageSpec, ids: torch.Tensor, token: int) -> Made:
    """One picture each for a Q-Former, InstructBLIP's with the text (BLIP-2, InstructBLIP)."""
    values = {}
    if config.model_type == "instructblip":
        values["qformer_input_ids"] = ids[:, image.num_tokens * samples.images_per_sample :].clone()
        values["qformer_attention_mask"] = torch.ones_like(values["qformer_input_ids"])
    return values, {"pixel_values": (samples.num_images, 3, image.resized_height, image.resized_width)}


def _side(value: Any) -> int:
    return int(value if isinstance(value, int) else value[0])


_FAMILIES: Mapping[str, Callable[..., Made]] = {
    **dict.fromkeys(GRID_TYPES, _typed_grids),
    **dict.fromkeys(UNTYPED_GRID_TYPES, _grids_of_clips),
    **dict.fromkeys(THINKER_TYPES, _grids_of_thinkers),
    **dict.fromkeys(TILE_TYPES, _tiles),
    **dict.fromkeys(("gemma3", "gemma3n", "lighton_ocr", "llava", "mistral3", "paligemma"), _squares),
    **dict.fromkeys(("llava_next", "llava_onevision"), _anyres),
    **dict.fromkeys(("idefics3", "smolvlm"), _idefics3),
    **dict.fromkeys(("blip-2", "instructblip"), _queries),
    **dict.fromkeys(("gemma4", "gemma4_unified"), _padded_patches),
    "idefics2": _idefics2,
    "lfm2_vl": _lfm2_vl,
    "llama4": _llama4,
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), _packed_patches),
    "mllama": _mllama,
    "phi4_multimodal": _phi4_multimodal,
}
