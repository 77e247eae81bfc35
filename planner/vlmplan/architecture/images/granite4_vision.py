"""Granite 4 Vision: LLaVA-NeXT's tiles, of whose features fewer are left a side.

Follows transformers 5.23: ``LlavaNextImageProcessor``, and ``_get_number_of_features`` of ``Granite4VisionProcessor``.
"""

from typing import Any

from vlmplan.architecture.images.anyres import anyres_tile, anyres_tiles
from vlmplan.architecture.images.fixed import num_extra_features
from vlmplan.architecture.images.settings import section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed

RATE = "downsample_rate"


def granite4_vision_shape(image: Image) -> ImageShape:
    """As LLaVA-NeXT's, of windows' queries in the place of patches.

    Raises InputError for towers that the model's class refuses, or whose patches do not make whole windows.
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 14)
    tile = anyres_tile(image, side(vision, "image_size", 336))
    queries, window = downsample_rate(image.config.get(RATE))
    patches = tile // patch_size
    if patches % window:
        raise InputError(
            f"config.json: {RATE} is {queries}/{window}; a tile of {tile} pixels has {patches} patches a side, "
            f"which are no whole windows of {window}"
        )
    if num_extra_features(image.config, vision, "clip_vision_model"):
        raise InputError(
            "config.json: vision_feature_select_strategy goes with the tower: default where it has a class token "
            "(clip_vision_model), full where it has none"
        )
    grid_side = patches // window * queries
    return anyres_tiles(image, tile=tile, patch_size=patch_size, grid_side=grid_side, num_whole=grid_side**2)


def downsample_rate(value: Any) -> tuple[int, int]:
    """(queries, patches) a side of a window. Raises InputError for anything but a text like 4/8."""
    parts = value.split("/") if isinstance(value, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise not_allowed("config.json", RATE, value, "a text like 4/8, queries and patches a side of a window,")
    return int(parts[0]), int(parts[1])
