"""Florence-2: every image becomes one of the same sides, and each feature of its tower's last stage a token.

Follows transformers 5.23: ``CLIPImageProcessor`` with ``Florence2Processor`` (models/florence2).
"""

from vlmplan.architecture.config import Config
from vlmplan.architecture.images.settings import count, cropped_sides
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

DEFAULT_PIXELS = 224
"""The side of an image of ``CLIPImageProcessor`` that says none."""
NUM_MARKERS = 2
"""Tokens that begin and end a sample with an image (``Florence2Processor.prepare_inputs_layout``)."""


def florence2_shape(image: Image) -> ImageShape:
    """Raises InputError for an ``image_seq_length``, which the processor repeats, that is not what the tower makes."""
    height, width = cropped_sides(image.preprocessor, DEFAULT_PIXELS)
    rows, columns = height, width
    vision = Config(image.config).section("vision_config")
    convolutions = zip(*(vision.integers(f"patch_{name}") for name in ("size", "stride", "padding")), strict=False)
    for kernel, stride, padding in convolutions:
        rows, columns = ((side + 2 * padding - kernel) // max(stride, 1) + 1 for side in (rows, columns))
    num_features = rows * columns + 1
    num_tokens = count(image.preprocessor, "image_seq_length", num_features)
    if min(rows, columns) < 1 or num_tokens != num_features:
        raise InputError(
            f"preprocessor_config.json: image_seq_length is {num_tokens}, and the tower makes {num_features} features "
            f"of an image of {width} x {height} pixels"
        )
    return ImageShape(
        num_tokens=num_tokens + NUM_MARKERS,
        num_placeholder_tokens=num_tokens,
        num_vision_sequences=1,
        num_patch_columns=columns,
        num_patch_rows=rows,
        resized_width=width,
        resized_height=height,
    )
