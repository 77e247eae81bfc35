"""Tiles of the best of a list of resolutions, plus the whole image: llava_next, llava_next_video and llava_onevision.

Follows transformers 5.23: ``select_best_resolution`` in image_processing_utils.py,
``LlavaNextImageProcessor`` and ``LlavaOnevisionImageProcessor``, and ``_get_number_of_features`` with
``_get_unpadded_features`` of ``LlavaNextProcessor`` and ``LlavaOnevisionProcessor``.

The features of the tiles are laid out as one picture, rows or columns that only cover padding are cut off,
and a learned newline feature is put at the end of each row; the newlines are placeholders too.
"""

import math
from typing import cast

from vlmplan.architecture.images.fixed import num_extra_features
from vlmplan.architecture.images.settings import Settings, file_settings, flag, section, side, sides
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown

_LLAVA_NEXT_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
FRAME_SIDE = 224
"""``crop_size`` of ``LlavaNextVideoVideoProcessor``."""
POOLED_SIDE = 2
"""Features a side of a frame that are pooled to one (LLaVA-NeXT-Video)."""
_ONEVISION_PINPOINTS = [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]


def llava_next_shape(image: Image) -> ImageShape:
    """LLaVA-NeXT (v1.6): class token dropped, rows unpadded, one newline per row."""
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 14)
    tile = anyres_tile(image, side(vision, "image_size", 336))
    grid_side = tile // patch_size
    num_whole = grid_side**2 + num_extra_features(image.config, vision, "clip_vision_model")
    return anyres_tiles(image, tile=tile, patch_size=patch_size, grid_side=grid_side, num_whole=num_whole)


def anyres_tile(image: Image, default: int) -> int:
    """Pixels a side of LLaVA-NeXT's tiles."""
    return _tile_side(image, default, crops_by_default=True)


def anyres_tiles(image: Image, *, tile: int, patch_size: int, grid_side: int, num_whole: int) -> ImageShape:
    """Tiles of ``grid_side`` features a side, laid out with newlines, behind ``num_whole`` features of the whole."""
    canvas_height, canvas_width = best_resolution(image, _pinpoints(image, _LLAVA_NEXT_PINPOINTS))
    rows, columns = _unpadded(image, grid_side, canvas_height // tile, canvas_width // tile)
    return _tiled(
        num_placeholder_tokens=num_whole + rows * (columns + 1),
        tile=tile,
        patch_size=patch_size,
        canvas=(canvas_height, canvas_width),
        unpadded=(rows, columns),
    )


def llava_onevision_shape(image: Image) -> ImageShape:
    """LLaVA-OneVision: as LLaVA-NeXT, then shrunk to the area of ``anyres_max_N`` tiles where it is larger.

    Only the image of a sample with one image is tiled; of several each is padded to a square and gives the
    features of one tile and a newline (``batch_num_images`` in ``LlavaOnevisionImageProcessor``).
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 14)
    tile = _tile_side(image, side(vision, "image_size", 384), crops_by_default=False)
    grid_side = tile // patch_size
    num_whole = grid_side**2 + num_extra_features(image.config, vision, "siglip_vision_model", strategy="full")
    if image.num_images_per_sample > 1:
        return ImageShape(
            num_tokens=num_whole + 1,
            num_placeholder_tokens=num_whole + 1,
            num_vision_sequences=1,
            num_patch_columns=grid_side,
            num_patch_rows=grid_side,
            resized_width=tile,
            resized_height=tile,
        )
    canvas_height, canvas_width = best_resolution(image, _pinpoints(image, _ONEVISION_PINPOINTS))
    unpadded = rows, columns = _unpadded(image, grid_side, canvas_height // tile, canvas_width // tile)
    ratio = math.sqrt(rows * columns / (_max_tiles(image) * grid_side**2))
    if ratio > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return _tiled(
        num_placeholder_tokens=num_whole + rows * (columns + 1),
        tile=tile,
        patch_size=patch_size,
        canvas=(canvas_height, canvas_width),
        unpadded=unpadded,
    )


def frame_tile(config: Settings, video_settings: Settings | None) -> ImageShape:
    """A frame of LLaVA-NeXT-Video, which is one tile (``LlavaNextVideoVideoProcessor``); tokens are those of its
    patches, of which squares are pooled."""
    vision = section(config, "vision_config")
    named = file_settings(video_settings or {}, "settings of videos: ")
    image = Image(config=config, preprocessor=named, width=1, height=1)
    tile, patch_size = _tile_side(image, FRAME_SIDE, crops_by_default=True), side(vision, "patch_size", 14)
    return ImageShape(
        num_tokens=(tile // patch_size) ** 2,
        num_placeholder_tokens=(tile // patch_size) ** 2,
        num_vision_sequences=1,
        num_patch_columns=tile // patch_size,
        num_patch_rows=tile // patch_size,
        resized_width=tile,
        resized_height=tile,
    )


def best_resolution(image: Image, pinpoints: list[tuple[int, int]]) -> tuple[int, int]:
    """The (height, width) of ``pinpoints`` that keeps most of the image's pixels, then wastes fewest."""
    best, most_kept, least_wasted = pinpoints[0], 0, math.inf
    for height, width in pinpoints:
        scale = min(width / image.width, height / image.height)
        kept = min(int(image.width * scale) * int(image.height * scale), image.width * image.height)
        wasted = height * width - kept
        if kept > most_kept or (kept == most_kept and wasted < least_wasted):
            best, most_kept, least_wasted = (height, width), kept, wasted
    return best


def _unpadded(image: Image, grid_side: int, tile_rows: int, tile_columns: int) -> tuple[int, int]:
    """(rows, columns) of features of the canvas without those that only cover padding."""
    rows, columns = grid_side * tile_rows, grid_side * tile_columns
    if not rows * columns:
        raise InputError("config.json: a patch has to fit in a tile, and a tile in each of image_grid_pinpoints")
    if image.width / image.height > columns / rows:
        kept = int(round(image.height * (columns / image.width), 7))
        return rows - (rows - kept) // 2 * 2, columns
    kept = int(round(image.width * (rows / image.height), 7))
    return rows, columns - (columns - kept) // 2 * 2


def _tile_side(image: Image, default: int, *, crops_by_default: bool) -> int:
    """Pixels of a tile: the crop where there is one, else the size it is resized to."""
    crops = flag(image.preprocessor, "do_center_crop", crops_by_default)
    key = "crop_size" if crops and image.preprocessor.get("crop_size") is not None else "size"
    height, width = sides(image.preprocessor, key, default)
    if height != width:
        found = shown(image.preprocessor[key])
        raise InputError(f"preprocessor_config.json: {key} is {found}; only square tiles are supported")
    return height


def _pinpoints(image: Image, default: list[list[int]]) -> list[tuple[int, int]]:
    """(height, width) pairs; the processor's, else the model's, which must be the same."""
    value: object = (
        image.preprocessor.get("image_grid_pinpoints") or image.config.get("image_grid_pinpoints") or default
    )
    needed = "a list of pairs of pixels, [height, width], is needed"
    message = f"config.json: image_grid_pinpoints is {shown(value)}; {needed}"
    if not isinstance(value, list):
        raise InputError(message)
    pairs: list[tuple[int, int]] = []
    for entry in cast("list[object]", value):
        pair = cast("list[object]", entry) if isinstance(entry, list | tuple) else []
        pixels = [edge for edge in pair if isinstance(edge, int) and edge > 0]
        if len(pair) != 2 or len(pixels) != 2:
            raise InputError(message)
        pairs.append((pixels[0], pixels[1]))
    return pairs


def _max_tiles(image: Image) -> int:
    value = image.config.get("vision_aspect_ratio")
    text = "anyres_max_9" if value is None else str(value)
    number = text.removeprefix("anyres_max_")
    if not number.isdecimal() or int(number) < 1:
        needed = "'anyres_max_' and a number of tiles is needed"
        raise InputError(f"config.json: vision_aspect_ratio is {shown(text)}; {needed}")
    return int(number)


def _tiled(
    *, num_placeholder_tokens: int, tile: int, patch_size: int, canvas: tuple[int, int], unpadded: tuple[int, int]
) -> ImageShape:
    """``canvas`` (height, width) is in pixels, ``unpadded`` (rows, columns) in features."""
    canvas_height, canvas_width = canvas
    columns, rows = math.ceil(canvas_width / tile), math.ceil(canvas_height / tile)
    return ImageShape(
        num_tokens=num_placeholder_tokens,
        num_placeholder_tokens=num_placeholder_tokens,
        num_vision_sequences=columns * rows + 1,
        num_patch_columns=tile // patch_size,
        num_patch_rows=tile // patch_size,
        resized_width=canvas_width,
        resized_height=canvas_height,
        num_tile_columns=columns,
        num_tile_rows=rows,
        num_unpadded_columns=unpadded[1],
        num_unpadded_rows=unpadded[0],
    )
