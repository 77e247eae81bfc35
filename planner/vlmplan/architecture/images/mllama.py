"""Llama 3.2 Vision (mllama): tiles of a canvas, padded to a fixed number, seen through cross-attention.

Follows transformers 5.23: ``get_optimal_tiled_canvas`` and ``pack_images`` in
models/mllama/image_processing_mllama.py (``MllamaImageProcessor``) and ``MllamaProcessor``.
"""

import math

from vlmplan.architecture.images.settings import count, section, side
from vlmplan.architecture.images.shape import Image, ImageShape


def mllama_shape(image: Image) -> ImageShape:
    """One ``<|image|>`` token in the text; the states of all ``max_image_tiles`` tiles beside it.

    Tiles that the image does not fill are zeros, computed like the others and masked in attention, so
    ``num_cross_attention_states`` is that of all tiles, class tokens included. Those that are not masked are
    ``num_tile_columns * num_tile_rows * (num_patches_per_sequence + 1)``.
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 14)
    tile = side(image.preprocessor, "size", side(vision, "image_size", 448))
    max_tiles = count(image.preprocessor, "max_image_tiles", count(vision, "max_num_tiles", 4))
    rows, columns = canvas_grid(image, tile=tile, max_tiles=max_tiles)
    num_patches_per_tile = (tile // patch_size) ** 2
    return ImageShape(
        num_tokens=1,
        num_placeholder_tokens=0,
        num_vision_sequences=max_tiles,
        num_patch_columns=tile // patch_size,
        num_patch_rows=tile // patch_size,
        resized_width=columns * tile,
        resized_height=rows * tile,
        num_tile_columns=columns,
        num_tile_rows=rows,
        num_cross_attention_states=max_tiles * (num_patches_per_tile + 1),
    )


def canvas_grid(image: Image, *, tile: int, max_tiles: int) -> tuple[int, int]:
    """(rows, columns) of the canvas that needs the least enlargement, else the least reduction.

    Of canvases with the same scale the one with the fewest tiles, and of those the one with the fewest rows.
    """
    grids = [(rows, columns) for rows in range(1, max_tiles + 1) for columns in range(1, max_tiles // rows + 1)]
    scales = {(rows, columns): min(rows * tile / image.height, columns * tile / image.width) for rows, columns in grids}
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales.values())
    candidates = [grid for grid in grids if scales[grid] == chosen]
    return min(candidates, key=math.prod)
