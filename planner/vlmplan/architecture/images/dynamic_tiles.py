"""Tiles of the vision tower's size in the grid that suits the image, plus a thumbnail: internvl, ovis2, aya_vision,
cohere2_vision and deepseek_ocr2.

Follows transformers 5.23: ``get_optimal_tiled_canvas`` in models/got_ocr2/image_processing_got_ocr2.py
(``GotOcr2ImageProcessor``) with ``InternVLProcessor`` and ``AyaVisionProcessor``; ``get_min_tile_covering_grid`` in
models/ovis2/image_processing_ovis2.py (``Ovis2ImageProcessor``) with ``Ovis2Processor``; ``get_optimal_tiled_canvas``
in models/cohere2_vision/image_processing_cohere2_vision.py with ``Cohere2VisionProcessor``.
"""

import math

from vlmplan.architecture.images.settings import count, flag, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

OCR2_STRIDE, OCR2_QUERIES = 4, (144, 256)
"""Patches a side that become one feature of DeepSeek-OCR 2, and the numbers of queries that its encoder has."""
OCR2_TILES = (2, 6)
"""The least and the most tiles that its processor asks for."""
_COVERING_THRESHOLD = 0.9
MAX_TILES = 1000
"""Published processors go up to 40; trying the grids of many more takes minutes."""


def internvl_shape(image: Image) -> ImageShape:
    """InternVL: pixel-unshuffled features of each tile between ``<img>`` and ``</img>``.

    ``crop_to_patches`` of preprocessor_config.json does not matter: ``InternVLProcessor`` passes True unless
    the caller asks otherwise.
    """
    vision = section(image.config, "vision_config")
    tile = side(image.preprocessor, "size", side(vision, "image_size", 448))
    patch_size = side(vision, "patch_size", 14)
    min_tiles, max_tiles = tile_limits(image)
    columns, rows = 1, 1
    if max_tiles > 1:
        columns, rows = closest_grid(image, tile=tile, min_tiles=min_tiles, max_tiles=max_tiles)
    return tiled(
        columns=columns,
        rows=rows,
        tile=tile,
        patch_size=patch_size,
        num_features_per_tile=math.floor(tile // patch_size * _downsample_ratio(image)) ** 2,
        num_text_tokens=2,
    )


def deepseek_ocr2_shape(image: Image) -> ImageShape:
    """DeepSeek-OCR 2: the whole image on a square, and tiles of a side of their own where it is larger than one.

    ``crop_to_patches``, ``min_patches`` and ``max_patches`` of preprocessor_config.json do not matter:
    ``DeepseekOcr2Processor`` passes its own unless it is asked otherwise (``images_kwargs``).

    Raises InputError for squares of which the encoder's queries are not as many as the processor writes tokens.
    """
    settings, vision = image.preprocessor, section(section(image.config, "vision_config"), "sam_config")
    patch_size = side(vision, "patch_size", 16)
    tile, whole = count(settings, "tile_size", 768), side(settings, "size", side(vision, "image_size", 1024))
    columns, rows = 0, 0
    if max(image.width, image.height) > tile:
        columns, rows = closest_grid(image, tile=tile, min_tiles=OCR2_TILES[0], max_tiles=OCR2_TILES[1])
    for pixels in (whole, tile)[: 1 + (columns > 0)]:
        num_tokens = math.ceil(pixels / patch_size / OCR2_STRIDE) ** 2
        if num_tokens not in OCR2_QUERIES:
            raise InputError(
                f"images of {pixels} x {pixels} pixels cannot be planned for deepseek_ocr2: its processor writes "
                f"{num_tokens} tokens, and its encoder has {' or '.join(map(str, OCR2_QUERIES))} queries"
            )
    of_whole, of_tile = (pixels // patch_size for pixels in (whole, tile))
    tokens = [math.ceil(patches / OCR2_STRIDE) ** 2 for patches in (of_whole, of_tile)]
    num_tiles, patches = columns * rows, of_tile if columns else of_whole
    num_tokens = tokens[0] + num_tiles * tokens[1] + 1
    return ImageShape(
        num_tokens=num_tokens,
        num_placeholder_tokens=num_tokens,
        num_vision_sequences=1 + num_tiles,
        num_patch_columns=patches,
        num_patch_rows=patches,
        resized_width=columns * tile or whole,
        resized_height=rows * tile or whole,
        num_tile_columns=columns or 1,
        num_tile_rows=rows or 1,
        num_overview_columns=of_whole if num_tiles else 0,
        num_overview_rows=of_whole if num_tiles else 0,
    )


def ovis2_shape(image: Image) -> ImageShape:
    """Ovis2: the thumbnail first, then the tiles; ``hidden_stride`` squared patches make one feature.

    Text tokens: ``<IMG_START>``, ``<IMG_GRID>``, ``<IMG_END>``, and an ``<IMG_COL>`` or ``<IMG_ROW>`` between
    any two tiles.
    """
    vision = section(image.config, "vision_config")
    tile = side(image.preprocessor, "size", side(vision, "image_size", 224))
    patch_size = side(vision, "patch_size", 14)
    columns, rows = _ovis2_grid(image, tile)
    return tiled(
        columns=columns,
        rows=rows,
        tile=tile,
        patch_size=patch_size,
        num_features_per_tile=math.ceil(tile // patch_size / count(vision, "hidden_stride", 1)) ** 2,
        num_text_tokens=3 + (columns * rows - 1),
    )


def aya_vision_shape(image: Image) -> ImageShape:
    """Aya Vision: a name before the features of each tile, the thumbnail's last, and one token around all at each end.

    ``crop_to_patches`` of preprocessor_config.json does not matter: ``AyaVisionProcessor`` passes True unless it is
    asked otherwise (``images_kwargs``).
    """
    tile = side(image.preprocessor, "size", side(section(image.config, "vision_config"), "image_size", 384))
    min_tiles, max_tiles = tile_limits(image)
    grid = closest_grid(image, tile=tile, min_tiles=min_tiles, max_tiles=max_tiles) if max_tiles > 1 else (1, 1)
    return _named_tiles(image, grid, tile)


def cohere2_vision_shape(image: Image) -> ImageShape:
    """Command A Vision: a line break behind the features of each tile, and one token around all at each end.

    ``min_patches`` is not looked at.
    """
    tile = side(image.preprocessor, "size", side(section(image.config, "vision_config"), "image_size", 512))
    _, max_tiles = tile_limits(image)
    cuts = flag(image.preprocessor, "crop_to_patches", True)
    return _named_tiles(image, filled_grid(image, tile=tile, max_tiles=max_tiles) if cuts else (1, 1), tile)


def _named_tiles(image: Image, grid: tuple[int, int], tile: int) -> ImageShape:
    """Tiles with one more token each and two around all; of ``downsample_factor`` squared patches is one feature."""
    columns, rows = grid
    patch_size = side(section(image.config, "vision_config"), "patch_size", 16)
    return tiled(
        columns=columns,
        rows=rows,
        tile=tile,
        patch_size=patch_size,
        num_features_per_tile=(tile // patch_size // count(image.config, "downsample_factor", 2)) ** 2,
        num_text_tokens=columns * rows + (columns * rows > 1) + 2,
    )


def filled_grid(image: Image, *, tile: int, max_tiles: int) -> tuple[int, int]:
    """(columns, rows) of the canvas that the image has to be enlarged for least, or shrunk where none is large enough.

    Of equal ones the first is taken.
    """
    choices = grids(1, max_tiles)
    scales = [min(columns * tile / image.width, rows * tile / image.height) for columns, rows in choices]
    fitting = [(scale, place) for place, scale in enumerate(scales) if scale >= 1]
    if fitting:
        return choices[min(fitting)[1]]
    return choices[scales.index(max(scales))]


def grids(min_tiles: int, max_tiles: int, max_side: int = MAX_TILES) -> list[tuple[int, int]]:
    """All pairs up to ``max_side`` whose product lies within the limits, fewest tiles first, then as counted by the
    first.

    Source: ``get_all_supported_aspect_ratios``; Python's sort is stable. Raises InputError for more than MAX_TILES.
    """
    if max_tiles > MAX_TILES:
        raise InputError(f"preprocessor_config.json: an image may become {max_tiles} tiles; at most {MAX_TILES} can")
    pairs = (
        (first, second)
        for first in range(1, min(max_tiles, max_side) + 1)
        for second in range(1, min(max_tiles // first, max_side) + 1)
        if first * second >= min_tiles
    )
    return sorted(pairs, key=lambda pair: pair[0] * pair[1])


def closest_grid(
    image: Image, *, tile: int, min_tiles: int, max_tiles: int, max_side: int = MAX_TILES
) -> tuple[int, int]:
    """(columns, rows) of the aspect ratio closest to the image's.

    Of grids of the same ratio a larger one is taken while the image has more than half of its pixels.
    """
    aspect_ratio = image.width / image.height
    best, best_difference = (1, 1), math.inf
    for grid in grids(min_tiles, max_tiles, max_side):
        columns, rows = grid
        difference = abs(aspect_ratio - columns / rows)
        fills = image.width * image.height > 0.5 * tile * tile * columns * rows
        if difference < best_difference or (difference == best_difference and fills):
            best, best_difference = grid, difference
    return best


def covering_grid(image: Image, *, tile: int, max_tiles: int) -> tuple[int, int]:
    """(columns, rows) of the fewest tiles that show more than nine tenths of the image's area.

    If no grid does, the one that shows most. The pair is searched as (rows, columns) and then used as
    (columns, rows): so does ``Ovis2ImageProcessor.crop_image_to_patches``, and the transposed grid is what
    the model is given.
    """
    covered = [
        (pair, _covered_fraction(image, rows=pair[0], columns=pair[1], tile=tile)) for pair in grids(1, max_tiles)
    ]
    enough = [entry for entry in covered if entry[1] > _COVERING_THRESHOLD]
    if enough:
        return min(enough, key=lambda entry: (entry[0][0] * entry[0][1], -entry[1]))[0]
    return min(covered, key=lambda entry: (-entry[1], entry[0][0] * entry[0][1]))[0]


def _covered_fraction(image: Image, *, rows: int, columns: int, tile: int) -> float:
    """Pixels that survive shrinking each cell's longer side to ``tile``, over all pixels.

    The last row and column take the remainder, as in ``split_image_into_grid``. Summed cell by cell in
    the source's order, because the choice hangs on ties between floats.
    """
    heights = _cell_lengths(image.height, rows)
    widths = _cell_lengths(image.width, columns)
    covered = sum(_shrunk_area(height, width, tile) for height in heights for width in widths)
    return covered / (image.width * image.height)


def _cell_lengths(length: int, num_cells: int) -> list[int]:
    cell = length // num_cells
    return [cell] * (num_cells - 1) + [length - cell * (num_cells - 1)]


def _shrunk_area(height: int, width: int, tile: int) -> float:
    longer, shorter = max(width, height), min(width, height)
    return tile * (shorter / longer * tile) if longer > tile else longer * shorter


def _ovis2_grid(image: Image, tile: int) -> tuple[int, int]:
    min_tiles, max_tiles = tile_limits(image)
    if not flag(image.preprocessor, "crop_to_patches", False) or max_tiles == 1:
        return 1, 1
    if flag(image.preprocessor, "use_covering_area_grid", True):
        return covering_grid(image, tile=tile, max_tiles=max_tiles)
    return closest_grid(image, tile=tile, min_tiles=min_tiles, max_tiles=max_tiles)


def tile_limits(image: Image, max_tiles: int = 12) -> tuple[int, int]:
    """The least and the most tiles of an image, the latter ``max_tiles`` where the file has none."""
    min_tiles = count(image.preprocessor, "min_patches", 1)
    max_tiles = count(image.preprocessor, "max_patches", max_tiles)
    if min_tiles > max_tiles:
        allowed = f"at most max_patches, {max_tiles}, is allowed"
        raise InputError(f"preprocessor_config.json: min_patches is {min_tiles}; {allowed}")
    return min_tiles, max_tiles


def _downsample_ratio(image: Image) -> float:
    value: object = image.config.get("downsample_ratio")
    if value is None:
        return 0.5
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(f"config.json: downsample_ratio is {value!r}; a number above 0 and up to 1 is needed")
    return float(value)


def tiled(
    *, columns: int, rows: int, tile: int, patch_size: int, num_features_per_tile: int, num_text_tokens: int
) -> ImageShape:
    """The shape of columns x rows tiles and, where they are more than one, a thumbnail."""
    num_tiles = columns * rows + (columns * rows > 1)
    num_features = num_tiles * num_features_per_tile
    return ImageShape(
        num_tokens=num_features + num_text_tokens,
        num_placeholder_tokens=num_features,
        num_vision_sequences=num_tiles,
        num_patch_columns=tile // patch_size,
        num_patch_rows=tile // patch_size,
        resized_width=columns * tile,
        resized_height=rows * tile,
        num_tile_columns=columns,
        num_tile_rows=rows,
    )
