"""A step of a Gemma 4 that sees, with towers or without, against transformers (needs torch and transformers)."""

import torch

from family_checks import assert_step_matches, text_inputs
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.model import Batch

SEVENTY = {"max_soft_tokens": 70}


def step(config, width, height, micro_batch=2, **options):
    """``assert_step_matches`` of samples of 100 tokens with one image of ``width`` x ``height`` each."""
    image = image_shape(config, SEVENTY, width=width, height=height)
    batch = Batch(micro_batch=micro_batch, num_tokens=100, images_per_sample=1, image=image)
    inputs = text_inputs(batch, vocab_size=90)
    inputs["input_ids"][:, 4 : 4 + image.num_placeholder_tokens] = config["image_token_id"]
    grid = torch.meshgrid(torch.arange(image.num_patch_columns), torch.arange(image.num_patch_rows), indexing="xy")
    places = torch.full((image.num_patches + image.num_padding_patches, 2), -1)
    places[: image.num_patches] = torch.stack(grid, dim=-1).reshape(-1, 2)
    inputs["image_position_ids"] = places.repeat(batch.num_images, 1, 1)
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == config["image_token_id"]).long()
    pixels = build_model(config).pixel_shape(batch)
    assert pixels is not None
    return assert_step_matches(config, batch, inputs, {"pixel_values": pixels}, **options)
