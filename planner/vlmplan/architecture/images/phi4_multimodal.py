"""Phi-4-multimodal: as many tiles as cover the image, which is filled up with white, and the whole of it in one more.

Follows transformers 5.23: ``Phi4MultimodalImageProcessor`` in
models/phi4_multimodal/image_processing_phi4_multimodal.py, with ``Phi4MultimodalProcessor``.
"""

import math

from vlmplan.architecture.images.dynamic_tiles import closest_grid
from vlmplan.architecture.images.settings import count, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

FEATURES_PER_SIDE = 16
"""Of a tile: what the processor counts, whatever its settings are."""
LEAST_SIDE = 10
"""Fewer pixels in either direction are refused (``dynamic_preprocess``)."""


def phi4_multimodal_shape(image: Image) -> ImageShape:
    """Features of the tiles without what only covers white, one behind each row, one between, and the whole image.

    All of them are placeholders; the processor writes no token around them. Raises InputError for tiles that are not
    those of the configuration, or have another number of features than the processor counts, and for images so narrow
    that the processor refuses them.
    """
    tile, patch_size = _tile(image)
    columns, rows = math.ceil(image.width / tile), math.ceil(image.height / tile)
    most = count(image.preprocessor, "dynamic_hd", 36)
    if columns * rows > most:
        columns, rows = closest_grid(image, tile=tile, min_tiles=1, max_tiles=most)
    unused_columns, unused_rows = _unused_patches(image, tile, patch_size, columns, rows)
    num_patches = tile // patch_size
    num_columns = _features(columns, num_patches, unused_columns)
    num_rows = _features(rows, num_patches, unused_rows)
    num_features = num_rows * (num_columns + 1) + 1 + FEATURES_PER_SIDE * (FEATURES_PER_SIDE + 1)
    return ImageShape(
        num_tokens=num_features,
        num_placeholder_tokens=num_features,
        num_vision_sequences=1 + columns * rows,
        num_patch_columns=num_patches,
        num_patch_rows=num_patches,
        resized_width=columns * tile,
        resized_height=rows * tile,
        num_tile_columns=columns,
        num_tile_rows=rows,
        num_unpadded_columns=num_columns,
        num_unpadded_rows=num_rows,
        has_padded_sequences=bool(unused_columns or unused_rows),
    )


def _tile(image: Image) -> tuple[int, int]:
    """Pixels of a tile's side, and of a patch's."""
    vision = section(image.config, "vision_config")
    tile, patch_size = side(image.preprocessor, "size", 448), count(image.preprocessor, "patch_size", 14)
    of_model = (count(vision, "crop_size", 448), side(vision, "patch_size", 14))
    if (tile, patch_size) != of_model:
        raise InputError(
            f"preprocessor_config.json: tiles of {tile} pixels with patches of {patch_size} are not those of "
            f"vision_config, {of_model[0]} with {of_model[1]}"
        )
    fills_up = side(vision, "image_size", 448) // patch_size % 2  # features of an odd number of patches
    if tile % patch_size or (tile // patch_size + fills_up) // 2 != FEATURES_PER_SIDE:
        raise InputError(
            f"tiles of {tile} pixels with patches of {patch_size} cannot be planned for phi4_multimodal, whose "
            f"processor counts {FEATURES_PER_SIDE} x {FEATURES_PER_SIDE} features, one for four patches"
        )
    return tile, patch_size


def _unused_patches(image: Image, tile: int, patch_size: int, columns: int, rows: int) -> tuple[int, int]:
    """(columns, rows) of patches that only cover white, in one direction at most: the image keeps its proportions."""
    width, height = columns * tile, rows * tile
    by_width, by_height = width / image.width, height / image.height
    fills_width = by_width < by_height
    inner = (width, int(image.height * by_width)) if fills_width else (int(image.width * by_height), height)
    if min(inner) < LEAST_SIDE:
        raise InputError(
            f"an image of {image.text} pixels is too narrow for phi4_multimodal, whose processor refuses it"
        )
    return (width - inner[0]) // patch_size, (height - inner[1]) // patch_size


def _features(num_tiles: int, num_patches: int, num_unused: int) -> int:
    """Features in one direction: every second patch of each tile that is used."""
    used = num_tiles * num_patches - num_unused
    whole, rest = divmod(used, num_patches)
    return whole * FEATURES_PER_SIDE + math.ceil(rest / 2)
