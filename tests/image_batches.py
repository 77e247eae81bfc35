"""Micro batches with images for the step of a real model: ids with placeholders, pixels by shape, sizes."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from model_table import packaged_config
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch

IMAGE_TOKEN = 999
VOCABULARY = 1000  # small, so that the layers and not the logits make the peaks


@dataclass(frozen=True, kw_only=True)
class Step:
    """What ``family_checks.assert_step_matches`` is called with."""

    config: dict[str, Any]
    batch: Batch
    inputs: dict[str, torch.Tensor]
    floats: dict[str, tuple[int, ...]]


def cut_config(
    alias: str, *, num_layers: int = 3, text: Any = (), vision: Any = (), **changes: object
) -> dict[str, Any]:
    """The packaged config of ``alias`` with few layers and a small vocabulary; ``changes`` are top-level keys."""
    config = packaged_config(alias, image_token_index=IMAGE_TOKEN, **changes)
    config["text_config"] |= {"num_hidden_layers": num_layers, "vocab_size": VOCABULARY, **dict(text)}
    config["vision_config"] |= {"num_hidden_layers": 4, **dict(vision)}
    return config


def image_step(
    config: dict[str, Any],
    preprocessor: dict[str, Any] | None,
    size: tuple[int, int],
    *,
    micro_batch: int = 2,
    images_per_sample: int = 1,
    num_text_tokens: int = 61,
) -> Step:
    """Images of ``size`` (width, height) in front of text, as the model's processor would give them."""
    width, height = size
    shape = image_shape(config, preprocessor, width=width, height=height, num_images_per_sample=images_per_sample)
    num_tokens = shape.num_tokens * images_per_sample + num_text_tokens
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens, images_per_sample=images_per_sample, image=shape)
    ids = torch.arange(micro_batch * num_tokens).reshape(micro_batch, num_tokens) % 100
    ids[:, 1 : 1 + shape.num_placeholder_tokens * images_per_sample] = IMAGE_TOKEN
    inputs = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    pixels = (3, shape.resized_height, shape.resized_width)
    model_type, num_images = config["model_type"], batch.num_images
    if model_type in ("llava_next", "llava_onevision"):
        side = config["vision_config"]["image_size"]
        pixels = (shape.num_vision_sequences, 3, side, side)
        inputs["image_sizes"] = torch.tensor([[height, width]] * num_images)
        if model_type == "llava_onevision":
            inputs["batch_num_images"] = torch.tensor([images_per_sample] * micro_batch)
    elif config["vision_config"]["model_type"] == "pixtral":
        inputs["image_sizes"] = torch.tensor([[shape.resized_height, shape.resized_width]] * num_images)
    elif model_type == "paligemma":
        inputs["token_type_ids"] = torch.zeros_like(ids)
        inputs["token_type_ids"][:, -num_text_tokens // 2 :] = 1
    elif model_type == "gemma3":
        inputs["token_type_ids"] = (ids == IMAGE_TOKEN).long()
    return Step(config=config, batch=batch, inputs=inputs, floats={"pixel_values": (num_images, *pixels)})


def packaged_preprocessor(alias: str) -> dict[str, Any] | None:
    """preprocessor_config.json of ``alias``, None where it is not packaged."""
    path = files("vlmplan").joinpath("data", "models", alias, "preprocessor_config.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
