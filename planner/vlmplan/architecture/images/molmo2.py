"""Molmo 2: the whole image on one square, and overlapping crops of that size cut out of the canvas that suits it.

Follows transformers 5.23 ``compute_crop_geometry`` and ``select_tiling`` in models/molmo2/image_processing_molmo2.py,
and ``replace_image_token`` of ``Molmo2Processor`` with its own defaults: a token ends each row of features.
"""

import math
import struct
from collections.abc import Sequence
from typing import cast

from vlmplan.architecture.images.dynamic_tiles import grids
from vlmplan.architecture.images.settings import count, section, sides
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

CROP_PIXELS, PATCH_PIXELS, MOST_CROPS, MARGINS = 378, 14, 8, (4, 4)
"""``size``, ``patch_size``, ``max_crops`` and ``overlap_margins``, in patches, of the class."""
POOL_SIDE = 2
"""Patches a side that become one token (``pooling_size``), as all published files have it."""
NUM_MARKERS = 4
"""Tokens at either end of the whole image and of its crops."""


def molmo2_shape(image: Image) -> ImageShape:
    """Raises InputError for settings that the processor refuses, or that make other crops than the tower takes."""
    patch_size, crop = _patch_and_crop(image)
    crop_patches, margin = crop // patch_size, sum(_margins(image))
    if not 0 <= margin < crop_patches:
        raise InputError(
            f"preprocessor_config.json: overlap_margins are {margin} patches together; a crop has {crop_patches}, "
            f"and fewer are allowed"
        )
    step, edge = (crop_patches - margin) * patch_size, margin * patch_size
    rows, columns = _grid(
        image.height - edge, image.width - edge, step, count(image.preprocessor, "max_crops", MOST_CROPS)
    )
    high, wide = (number * (crop_patches - margin) + margin for number in (rows, columns))
    whole, token_rows, token_columns = (math.ceil(patches / POOL_SIDE) for patches in (crop_patches, high, wide))
    num_features = whole**2 + token_rows * token_columns
    return ImageShape(
        num_tokens=num_features + whole + token_rows + NUM_MARKERS,
        num_placeholder_tokens=num_features,
        num_vision_sequences=1 + rows * columns,
        num_patch_columns=crop_patches,
        num_patch_rows=crop_patches,
        resized_width=wide * patch_size,
        resized_height=high * patch_size,
        num_tile_columns=columns,
        num_tile_rows=rows,
        has_padded_sequences=any(patches % POOL_SIDE for patches in (crop_patches, high, wide)),
    )


def _patch_and_crop(image: Image) -> tuple[int, int]:
    """Pixels of a patch and of a crop, a side."""
    settings = image.preprocessor
    pool = settings.get("pooling_size")
    if pool is not None and sides(settings, "pooling_size", POOL_SIDE) != (POOL_SIDE, POOL_SIDE):
        raise InputError(
            f"preprocessor_config.json: pooling_size is {pool}; [{POOL_SIDE}, {POOL_SIDE}] alone is planned"
        )
    patch_size = count(settings, "patch_size", PATCH_PIXELS)
    height, width = sides(settings, "size", CROP_PIXELS)
    vision = section(image.config, "vision_config") or section(image.config, "vit_config")
    names = ("image_default_input_size", "image_size")
    taken = next((sides(vision, name, CROP_PIXELS) for name in names if vision.get(name)), (CROP_PIXELS, CROP_PIXELS))
    if height != width or taken != (height, width):
        raise InputError(
            f"preprocessor_config.json: size is {width} x {height}; the tower of config.json takes crops of "
            f"{taken[1]} x {taken[0]} pixels, and the processor squares alone"
        )
    return patch_size, height


def _margins(image: Image) -> tuple[int, int]:
    value: object = image.preprocessor.get("overlap_margins")
    if value is None:
        return MARGINS
    pair = list(cast(Sequence[object], value)) if isinstance(value, list | tuple) else []
    margins = [one for one in pair if isinstance(one, int) and not isinstance(one, bool) and one >= 0]
    if len(pair) != 2 or len(margins) != 2:
        raise InputError(f"preprocessor_config.json: overlap_margins is {value!r}; two whole numbers are needed")
    return margins[0], margins[1]


def _grid(height: int, width: int, step: int, most: int) -> tuple[int, int]:
    """(rows, columns) of the crops that an image without its margins has to be enlarged for least, or shrunk least
    where none is large enough; of equal ones the first. What is smaller than the margins counts with its sign."""
    choices = grids(1, most)
    scales = [min(_scale(rows * step, height), _scale(columns * step, width)) for rows, columns in choices]
    fitting = [(scale, place) for place, scale in enumerate(scales) if scale >= 1]
    return choices[min(fitting)[1] if fitting else scales.index(max(scales))]


def _scale(pixels: int, of: int) -> float:
    """A quotient of float32."""
    return struct.unpack("f", struct.pack("f", pixels / of))[0] if of else math.inf
