"""LFM2-VL: images near their own size, or square tiles of larger ones and the whole image beside them.

Follows transformers 5.23: ``Lfm2VlImageProcessor.resize_and_split`` in models/lfm2_vl/image_processing_lfm2_vl.py and
``_build_image_tokens`` in models/lfm2_vl/processing_lfm2_vl.py. The processor resizes whatever ``do_resize`` says.
"""

import math

from vlmplan.architecture.images.settings import count, flag
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.files.json_reader import not_allowed

TOLERANCE = 2.0
"""``max_pixels_tolerance`` of the class."""


def lfm2_vl_shape(image: Image) -> ImageShape:
    """Features of each tile and of the whole image, a start and an end token, and one before each tile and the whole.

    All are filled up with patches to one length. Raises InputError for a tolerance that is no positive number.
    """
    settings = image.preprocessor
    patch, factor = count(settings, "encoder_patch_size", 16), count(settings, "downsample_factor", 2)
    tile, most = count(settings, "tile_size", 512), count(settings, "max_image_tokens", 256)
    splits = flag(settings, "do_image_splitting", True)
    fewest_tiles, most_tiles = count(settings, "min_tiles", 2), count(settings, "max_tiles", 10)
    if splits and fewest_tiles > most_tiles:
        raise not_allowed("", "preprocessor_config.json: min_tiles", fewest_tiles, f"at most max_tiles, {most_tiles}")
    splits = splits and not fewest_tiles == most_tiles == 1
    length = max(most * factor**2, (tile // patch) ** 2 if flag(settings, "do_image_splitting", True) else 0)
    step, has_whole = patch * factor, flag(settings, "use_thumbnail", True)
    rows, columns = _resized(image, step, count(settings, "min_image_tokens", 64), most)
    whole = (columns * factor, rows * factor)
    sides = [max(patch, round(side / step) * step) for side in (image.height, image.width)]
    if splits and math.prod(sides) > most * step**2 * _tolerance(image):
        grid = _grid(image, fewest_tiles, most_tiles, tile)
        if grid != (1, 1):
            return _tiled(grid, whole, length, tile=tile, patch=patch, factor=factor, has_whole=has_whole)
    num_patches = whole[0] * whole[1]
    return ImageShape(
        num_tokens=rows * columns + 2,
        num_placeholder_tokens=rows * columns,
        num_vision_sequences=1,
        num_patch_columns=whole[0],
        num_patch_rows=whole[1],
        resized_width=whole[0] * patch,
        resized_height=whole[1] * patch,
        has_padded_sequences=num_patches < length,
        num_padding_patches=length - num_patches,
    )


def _tiled(
    grid: tuple[int, int],
    whole: tuple[int, int],
    length: int,
    *,
    tile: int,
    patch: int,
    factor: int,
    has_whole: bool,
) -> ImageShape:
    """Tiles of ``grid`` (columns, rows) and, behind them, ``whole`` (columns, rows) patches of the whole image."""
    side, num_tiles, num_whole = tile // patch, math.prod(grid), math.prod(whole)
    num_features = num_tiles * math.ceil(side / factor) ** 2 + has_whole * num_whole // factor**2
    return ImageShape(
        num_tokens=num_features + 2 + num_tiles + has_whole,
        num_placeholder_tokens=num_features,
        num_vision_sequences=num_tiles + has_whole,
        num_patch_columns=side,
        num_patch_rows=side,
        resized_width=grid[0] * tile,
        resized_height=grid[1] * tile,
        num_tile_columns=grid[0],
        num_tile_rows=grid[1],
        num_unpadded_columns=has_whole * whole[0],
        num_unpadded_rows=has_whole * whole[1],
        has_padded_sequences=side**2 < length or (has_whole and num_whole < length),
        num_padding_patches=length - side**2,
    )


def _tolerance(image: Image) -> float:
    value = image.preprocessor.get("max_pixels_tolerance", TOLERANCE)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise not_allowed("", "preprocessor_config.json: max_pixels_tolerance", value, "a number above 0")
    return value


def _resized(image: Image, step: int, fewest: int, most: int) -> tuple[int, int]:
    """``smart_resize``: (rows, columns) of features, each of ``step`` pixels a side."""
    height, width = image.height, image.width
    rows, columns = max(1, round(height / step)), max(1, round(width / step))
    if rows * columns > most:
        beta = math.sqrt(height * width / (most * step**2))
        rows, columns = (max(1, math.floor(side / beta / step)) for side in (height, width))
    elif rows * columns < fewest:
        beta = math.sqrt(fewest * step**2 / (height * width))
        rows, columns = math.ceil(height * beta / step), math.ceil(width * beta / step)
    return rows, columns


def _grid(image: Image, fewest: int, most: int, tile: int) -> tuple[int, int]:
    """``find_closest_aspect_ratio``: (columns, rows) of tiles. Where two are as close the order decides: the fewest
    tiles first, of as many as ``_target_ratios`` has them."""
    grids = [
        (columns, rows)
        for number in range(fewest, most + 1)
        for columns in range(1, number + 1)
        for rows in range(1, number + 1)
        if fewest <= columns * rows <= most
    ]
    best, least = (1, 1), math.inf
    for columns, rows in sorted(set(grids), key=math.prod):
        difference = abs(image.width / image.height - columns / rows)
        is_large = image.width * image.height > 0.5 * tile**2 * columns * rows
        if difference < least or (difference == least and is_large):
            best, least = (columns, rows), difference
    return best
