"""Micro batches with images for models of patches (Qwen-VL, GLM-4V) and of tiles (InternVL, Ovis 2)."""

from typing import Any

import torch

from image_batches import Step, packaged_preprocessor
from model_table import packaged_config
from vlmplan.architecture.images import ImageShape, image_shape
from vlmplan.architecture.model import Batch

VOCABULARY = 1000  # small, so that the layers and not the logits make the peaks
IMAGE_TOKEN = VOCABULARY - 1
TOKENS = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": 998,
    "vision_start_token_id": 997,
    "vision_end_token_id": 996,
    "image_start_token_id": 997,
    "image_end_token_id": 996,
    "video_start_token_id": 995,
    "video_end_token_id": 994,
    "pad_token_id": 993,
    "bos_token_id": 992,
    "eos_token_id": 991,
}
INDICATORS = [980, 981, 982, 983, 984]
TINY_DECODER = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
"""A decoder so small that the vision tower makes the peaks."""


def cut(alias: str, *, num_layers: int = 3, text: Any = (), vision: Any = (), **changes: object) -> dict[str, Any]:
    """The packaged config of ``alias`` with few layers and a small vocabulary; ``changes`` are top-level keys."""
    config = packaged_config(alias)
    config |= {key: value for key, value in TOKENS.items() if key in config}
    config |= changes
    if "text_config" in config:
        decoder = config["text_config"] = dict(config["text_config"])
    else:
        decoder = config
    decoder |= {"num_hidden_layers": num_layers, "vocab_size": VOCABULARY}
    decoder |= {key: value for key, value in TOKENS.items() if "token_id" in key and key in decoder}
    decoder |= dict(text)
    decoder.pop("layer_types", None)
    depth = "depth" if "depth" in config["vision_config"] else "num_hidden_layers"
    config["vision_config"] = {**config["vision_config"], depth: 5, **dict(vision)}
    if config["model_type"] == "ovis2":
        config |= {
            "vocab_size": VOCABULARY,
            "hidden_size": decoder["hidden_size"],
            "visual_indicator_token_ids": INDICATORS,
        }
    return config


def step(
    config: dict[str, Any],
    alias: str,
    size: tuple[int, int],
    *,
    micro_batch: int = 2,
    images_per_sample: int = 1,
    num_text_tokens: int = 61,
) -> Step:
    """Images of ``size`` (width, height) in front of text, as the processor of ``alias`` would give them."""
    image = image_shape(config, packaged_preprocessor(alias), width=size[0], height=size[1])
    num_tokens = image.num_tokens * images_per_sample + num_text_tokens
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens, images_per_sample=images_per_sample, image=image)
    ids = torch.arange(micro_batch * num_tokens).reshape(micro_batch, num_tokens) % 900
    ids[:, 20 : 20 + image.num_placeholder_tokens * images_per_sample] = IMAGE_TOKEN
    if config["model_type"] == "ovis2":
        _put_indicators(ids, image, images_per_sample)
    inputs = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    patch_size = _side(config["vision_config"]["patch_size"])
    if image.num_tokens == image.num_placeholder_tokens:
        inputs |= _grids(ids, batch, image)
        numel = 3 * config["vision_config"].get("temporal_patch_size", 2) * patch_size**2
        pixels: tuple[int, ...] = (batch.num_images * image.num_patches, numel)
    else:
        sides = (image.num_patch_rows * patch_size, image.num_patch_columns * patch_size)
        pixels = (batch.num_images * image.num_vision_sequences, 3, *sides)
    return Step(config=config, batch=batch, inputs=inputs, floats={"pixel_values": pixels})


def _grids(ids: torch.Tensor, batch: Batch, image: ImageShape) -> dict[str, torch.Tensor]:
    """What a processor adds for patches at native resolution; position_ids spare the real model a search for images."""
    grid = [1, image.num_patch_rows, image.num_patch_columns]
    return {
        "image_grid_thw": torch.tensor([grid] * batch.num_images),
        "mm_token_type_ids": (ids == IMAGE_TOKEN).long(),
        "position_ids": torch.arange(batch.num_tokens).view(1, 1, -1).expand(3, batch.micro_batch, -1).contiguous(),
    }


def _put_indicators(ids: torch.Tensor, image: ImageShape, images_per_sample: int) -> None:
    """Start, grid, between columns, between rows, end, as often as ``Ovis2Processor`` writes them."""
    columns, rows = image.num_tile_columns, image.num_tile_rows
    counts = [1, 1, rows * (columns - 1), rows - 1, 1]
    tokens = [token for token, count in zip(INDICATORS, counts, strict=True) for _ in range(count)]
    assert len(tokens) == image.num_tokens - image.num_placeholder_tokens
    tokens *= images_per_sample
    ids[:, -len(tokens) :] = torch.tensor(tokens)


def _side(value: Any) -> int:
    return value if isinstance(value, int) else value[0]
