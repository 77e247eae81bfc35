"""A step of a Gemma 4 that sees, with towers or without, against transformers (needs torch and transformers)."""

import torch

from family_checks import assert_step_matches, text_inputs
from vlmplan.architecture.families import build_model
from vlmplan.architecture.images import image_shape
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.architecture.model import Batch

SEVENTY = {"max_soft_tokens": 70}


def step(config, width, height, micro_batch=2, num_frames=None, **options):
    """``assert_step_matches`` of samples of 100 tokens and one image of ``width`` x ``height`` each, or a video of
    ``num_frames`` of that size."""
    if num_frames is None:
        image = image_shape(config, SEVENTY, width=width, height=height)
    else:
        image = clip_shape(config, None, None, num_frames=num_frames, size=(width, height))
    batch = Batch(
        micro_batch=micro_batch, num_tokens=30 + image.num_placeholder_tokens, images_per_sample=1, image=image
    )
    inputs = text_inputs(batch, vocab_size=90)
    token = config["video_token_id" if image.is_clip else "image_token_id"]
    inputs["input_ids"][:, 4 : 4 + image.num_placeholder_tokens] = token
    grid = torch.meshgrid(torch.arange(image.num_patch_columns), torch.arange(image.num_patch_rows), indexing="xy")
    places = torch.full((image.num_patches_per_sequence + image.num_padding_patches, 2), -1)
    places[: image.num_patches_per_sequence] = torch.stack(grid, dim=-1).reshape(-1, 2)
    places = places.repeat(batch.num_images * image.num_vision_sequences, 1, 1)
    inputs["video_position_ids" if image.is_clip else "image_position_ids"] = places
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == token).long()
    if image.is_clip:
        inputs["num_frames_per_video"] = torch.full((batch.num_images,), num_frames)
    pixels = build_model(config).pixel_shape(batch)
    assert pixels is not None
    name = "pixel_values_videos" if image.is_clip else "pixel_values"
    return assert_step_matches(config, batch, inputs, {name: pixels}, **options)
