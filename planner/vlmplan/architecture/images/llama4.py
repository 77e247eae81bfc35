"""Llama 4: square tiles of the canvas that fits best, and the whole image as one more tile.

Follows transformers 5.23: ``find_supported_resolutions`` and ``get_best_fit`` in
models/llama4/image_processing_llama4.py and ``_prompt_split_image`` in models/llama4/processing_llama4.py.
"""

import math

from vlmplan.architecture.images.settings import count, flag, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

MARKS = 3
"""``<|image_start|>``, ``<|image|>`` and ``<|image_end|>`` of every image; a tile of a row ends with a separator."""


def llama4_shape(image: Image) -> ImageShape:
    """Features of each tile, a separator behind each but the whole image's, and three marks.

    Raises InputError for a merge ratio that patches do not divide by.
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 14)
    tile = side(image.preprocessor, "size", side(vision, "image_size", 336))
    columns, rows = _canvas(image, tile=tile, max_tiles=count(image.preprocessor, "max_patches", 16))
    num_tiles = columns * rows + (columns * rows > 1)
    num_merged = _num_merged(vision.get("pixel_shuffle_ratio", 0.5))
    num_placeholder_tokens = num_tiles * ((tile // patch_size) ** 2 // num_merged)
    num_separators = columns * rows if columns * rows > 1 else 0
    return ImageShape(
        num_tokens=num_placeholder_tokens + num_separators + MARKS,
        num_placeholder_tokens=num_placeholder_tokens,
        num_vision_sequences=num_tiles,
        num_patch_columns=tile // patch_size,
        num_patch_rows=tile // patch_size,
        resized_width=columns * tile,
        resized_height=rows * tile,
        num_tile_columns=columns,
        num_tile_rows=rows,
    )


def _num_merged(ratio: object) -> int:
    if not isinstance(ratio, int | float) or isinstance(ratio, bool) or not 0 < ratio <= 1:
        raise InputError(f"config.json: vision_config.pixel_shuffle_ratio is {ratio!r}; a number in (0, 1] is needed")
    return round(1 / ratio**2)


def _canvas(image: Image, *, tile: int, max_tiles: int) -> tuple[int, int]:
    """(columns, rows): the least enlargement that fits, or the largest if asked for, else the least reduction.

    Of canvases with the same scale the one with the smallest area, and of those the first in the original's order:
    by ratio, as ratios turn up from the most tiles down and from the fewest rows up.
    """
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for num_tiles in range(max_tiles, 0, -1):
        for rows in range(1, num_tiles + 1):
            if num_tiles % rows == 0:
                columns = num_tiles // rows
                by_ratio.setdefault(rows / columns, []).append((rows, columns))
    grids = [grid for same in by_ratio.values() for grid in same]
    scales = [min(rows * tile / image.height, columns * tile / image.width) for rows, columns in grids]
    enlarging = [scale for scale in scales if scale >= 1]
    best = max if flag(image.preprocessor, "resize_to_max_canvas", False) else min
    chosen = best(enlarging) if enlarging else max(scales)
    rows, columns = min((grid for grid, scale in zip(grids, scales, strict=True) if scale == chosen), key=math.prod)
    return columns, rows
