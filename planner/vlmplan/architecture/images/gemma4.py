"""Gemma 4, with towers or without: pooled patches within a budget of tokens, at about the image's own proportions.

Follows transformers 5.23: ``get_aspect_ratio_preserving_size`` in models/gemma4/image_processing_gemma4.py
(``Gemma4ImageProcessor``), what models/gemma4_unified/image_processing_gemma4_unified.py makes of it, and
``Gemma4Processor.replace_image_token``.
"""

import math
from dataclasses import replace

from vlmplan.architecture.images.settings import count
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed

BUDGETS = (70, 140, 280, 560, 1120)
"""``max_soft_tokens`` that the processor takes (``_SUPPORTED_SOFT_TOKENS``)."""


def gemma4_shape(image: Image) -> ImageShape:
    """Enlarged or shrunk to the budget, each side rounded down to whole pooled patches, then filled up with patches.

    The text holds one token before and one behind the features. Raises InputError for an image so thin that nothing is
    left of both sides, and for a budget that the processor refuses.
    """
    if not image.config.get("vision_config"):
        raise InputError("config.json has no vision_config: this Gemma 4 sees no images; give --images-per-sample 0")
    patch_size = count(image.preprocessor, "patch_size", 16)
    kernel = count(image.preprocessor, "pooling_kernel_size", 3)
    budget = count(image.preprocessor, "max_soft_tokens", 280)
    if budget not in BUDGETS:
        allowed = f"one of {', '.join(map(str, BUDGETS))}"
        raise not_allowed("preprocessor_config.json", "max_soft_tokens", budget, allowed)
    token_side, max_patches = patch_size * kernel, budget * kernel**2
    factor = math.sqrt(max_patches * patch_size**2 / (image.width * image.height))
    rows = math.floor(factor * image.height / token_side)
    columns = math.floor(factor * image.width / token_side)
    if not rows and not columns:
        raise InputError(f"image {image.text} cannot be resized to whole patches of {token_side} pixels")
    if not rows:
        rows, columns = 1, min(image.width // image.height, budget)
    elif not columns:
        rows, columns = min(image.height // image.width, budget), 1
    num_tokens = rows * columns
    return ImageShape(
        num_tokens=num_tokens + 2,
        num_placeholder_tokens=num_tokens,
        num_vision_sequences=1,
        num_patch_columns=columns * kernel,
        num_patch_rows=rows * kernel,
        resized_width=columns * token_side,
        resized_height=rows * token_side,
        num_padding_patches=max_patches - num_tokens * kernel**2,
    )


def gemma4_unified_shape(image: Image) -> ImageShape:
    """The shape of an image in Gemma 4's unified models: that of ``gemma4_shape``, with the patches of each token
    merged into one (``patches_merge``) before the model sees them."""
    shape = gemma4_shape(image)
    kernel = count(image.preprocessor, "pooling_kernel_size", 3)
    return replace(
        shape,
        num_patch_columns=shape.num_patch_columns // kernel,
        num_patch_rows=shape.num_patch_rows // kernel,
        num_padding_patches=shape.num_padding_patches // kernel**2,
    )
