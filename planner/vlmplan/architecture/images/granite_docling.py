r"""Granite for Docling: tiles in the grid that suits the page, up to 16 a side, and a thumbnail.

Follows transformers 5.23: models/granite_docling/image_processing_granite_docling.py
(``GraniteDoclingImageProcessor``) with ``GraniteDoclingProcessor.replace_image_token``.
"""

from vlmplan.architecture.images.dynamic_tiles import closest_grid, tile_limits, tiled
from vlmplan.architecture.images.settings import count, flag, number, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

MAX_GRID_SIDE = 16
"""The tokenizer has ``<row_R_col_C>`` up to there."""
MAX_TILES = 32
"""``max_patches`` of the class."""


def granite_docling_shape(image: Image) -> ImageShape:
    r"""Each tile is ``<fake_token_around_image><row_R_col_C>`` and its features, a row ends with ``\n``; of several the
    whole image comes last as ``\n<fake_token_around_image><global-img> ... <fake_token_around_image>``. The newline
    before it joins that of the last row in published tokenizers.

    With ``fine_route`` four times as many features are made of a tile, by half the ``scale_factor``.
    """
    settings, vision = image.preprocessor, section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 16)
    tile = side(settings, "size", side(vision, "image_size", 512))
    columns, rows = _grid(image, tile)
    num_features = (tile // patch_size) ** 2 // count(vision, "scale_factor", 4) ** 2
    if flag(settings, "fine_route", False):
        if not flag(vision, "use_fine_route", True):
            raise InputError(
                "preprocessor_config.json: fine_route is True; the model has no fine route "
                "(vision_config.use_fine_route is false)"
            )
        num_features *= 4
    num_tiles = columns * rows
    return tiled(
        columns=columns,
        rows=rows,
        tile=tile,
        patch_size=patch_size,
        num_features_per_tile=num_features,
        num_text_tokens=2 * num_tiles + rows + (3 if num_tiles > 1 else 0),
    )


def _grid(image: Image, tile: int) -> tuple[int, int]:
    """(columns, rows): ``get_page_tile_grid``."""
    if not flag(image.preprocessor, "crop_to_patches", True):
        return 1, 1
    min_tiles, max_tiles = tile_limits(image, MAX_TILES)
    if max_tiles <= 1:
        return 1, 1
    max_tiles = _tile_budget(image, tile, min_tiles, max_tiles)
    return _closest(image, tile, min_tiles, max_tiles) if max_tiles > 1 else (1, 1)


def _closest(image: Image, tile: int, min_tiles: int, max_tiles: int) -> tuple[int, int]:
    return closest_grid(image, tile=tile, min_tiles=min_tiles, max_tiles=max_tiles, max_side=MAX_GRID_SIDE)


def _tile_budget(image: Image, tile: int, min_tiles: int, max_tiles: int) -> int:
    """``get_tile_budget``: ``dense_max_patches`` where the page is wide and would be shrunk too much, else
    ``max_tiles``."""
    settings = image.preprocessor
    dense = count(settings, "dense_max_patches", 1) if settings.get("dense_max_patches") else 0
    keys = ("dense_max_scale", "dense_min_aspect", "dense_max_aspect")
    max_scale, min_aspect, max_aspect = (number(settings, key, 1.0) if settings.get(key) else 0.0 for key in keys)
    if not dense or not (max_scale or min_aspect):
        return max_tiles
    aspect_ratio = image.width / image.height
    if (min_aspect and aspect_ratio <= min_aspect) or (max_aspect and aspect_ratio > max_aspect):
        return max_tiles
    if max_scale:
        columns, _ = _closest(image, tile, min_tiles, max_tiles)
        if columns * tile / image.width >= max_scale:
            return max_tiles
    return dense
