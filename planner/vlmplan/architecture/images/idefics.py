"""Idefics2 (the image, or its quarters and itself) and Idefics3 and SmolVLM (square tiles and a thumbnail).

Follows transformers 5.23: models/idefics2/image_processing_idefics2.py (``Idefics2ImageProcessor``) with
``Idefics2Processor``; models/idefics3/image_processing_idefics3.py (``Idefics3ImageProcessor``), of which
``SmolVLMImageProcessor`` is a copy, with ``Idefics3Processor.replace_image_token``.
"""

import math

from vlmplan.architecture.images.settings import Settings, count, edge, flag, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

_MAX_IMAGE_SIDE = 4096
_MAX_GRID_SIDE = 6


def idefics2_shape(image: Image) -> ImageShape:
    """Idefics2: a Perceiver turns each picture into ``resampler_n_latents`` features.

    With ``do_image_splitting`` (off in the class, on in the published idefics2-8b) four quarters go before
    the image; all five are padded to the largest of them. Text tokens: ``<fake_token_around_image>`` before,
    between and after, since ``Idefics2Processor.__call__`` joins doubled ones; so two images
    without text between them take one token less than twice ``num_tokens``.
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 32)
    num_latents = count(section(image.config, "perceiver_config"), "resampler_n_latents", 64)
    pictures = [(image.height, image.width)]
    if flag(image.preprocessor, "do_image_splitting", False):
        pictures += _quarters(image)
    resized = [_idefics2_resized(height, width, image.preprocessor) for height, width in pictures]
    height, width = max(h for h, _ in resized), max(w for _, w in resized)
    num_features = len(pictures) * num_latents
    return ImageShape(
        num_tokens=num_features + len(pictures) + 1,
        num_placeholder_tokens=num_features,
        num_vision_sequences=len(pictures),
        num_patch_columns=width // patch_size,
        num_patch_rows=height // patch_size,
        resized_width=width,
        resized_height=height,
        has_padded_sequences=len(set(resized)) > 1,
    )


def idefics3_shape(image: Image) -> ImageShape:
    r"""Idefics3 and SmolVLM: tiles of ``max_image_size`` pixels and the whole image in one more.

    Each tile is ``<fake_token_around_image><row_R_col_C>`` and its features, a row ends with ``\n``, the
    whole image comes last as ``\n<fake_token_around_image><global-img> ... <fake_token_around_image>``. The
    newline before it joins that of the last row in the published tokenizers, so a row costs one. Grids
    beyond 6 x 6 have no ``<row_R_col_C>`` tokens and are refused.
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 32)
    tile = edge(image.preprocessor, "max_image_size", "longest_edge", side(vision, "image_size", 224))
    num_features_per_tile = (tile // patch_size) ** 2 // count(image.config, "scale_factor", 2) ** 2
    columns, rows = 1, 1
    if flag(image.preprocessor, "do_image_splitting", True):
        columns, rows = _idefics3_grid(image, tile)
    num_grid_tiles = columns * rows if columns * rows > 1 else 0
    num_features = (num_grid_tiles + 1) * num_features_per_tile
    num_newlines = rows if num_grid_tiles else 0
    return ImageShape(
        num_tokens=num_features + num_grid_tiles * 2 + num_newlines + 3,
        num_placeholder_tokens=num_features,
        num_vision_sequences=num_grid_tiles + 1,
        num_patch_columns=tile // patch_size,
        num_patch_rows=tile // patch_size,
        resized_width=columns * tile,
        resized_height=rows * tile,
        num_tile_columns=columns,
        num_tile_rows=rows,
    )


def _quarters(image: Image) -> list[tuple[int, int]]:
    """(height, width) of the four parts of ``Idefics2ImageProcessor.split_images``."""
    if min(image.width, image.height) < 2:
        raise InputError(f"image {image.text} cannot be split into quarters; 2 pixels a side are needed")
    heights = (image.height // 2, image.height - image.height // 2)
    widths = (image.width // 2, image.width - image.width // 2)
    return [(height, width) for height in heights for width in widths]


def _idefics2_resized(height: int, width: int, preprocessor: Settings) -> tuple[int, int]:
    """(height, width), shrunk to the longest edge, stretched to the shortest.

    Source: ``get_resize_output_image_size``.
    """
    shortest = edge(preprocessor, "size", "shortest_edge", 378)
    longest = edge(preprocessor, "size", "longest_edge", 980)
    aspect_ratio = width / height
    if width >= height and width > longest:
        height, width = int(longest / aspect_ratio), longest
    elif height > width and height > longest:
        height, width = longest, int(longest * aspect_ratio)
    return max(height, shortest), max(width, shortest)


def _idefics3_grid(image: Image, tile: int) -> tuple[int, int]:
    """(columns, rows) of tiles.

    Unlike ``get_number_of_image_patches``, which skips the second rescaling, this follows the pixels:
    ``resize`` to the longest edge, ``resize_for_vision_encoder`` to whole tiles, ``split_images``.
    """
    # The class default is 4 * 364 pixels for tiles of 364: four tiles a side.
    longest = edge(image.preprocessor, "size", "longest_edge", 4 * tile)
    height, width = _to_longest_edge(image.height, image.width, longest)
    aspect_ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / aspect_ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * aspect_ratio) / tile) * tile
    columns, rows = width // tile, height // tile
    if max(columns, rows) > _MAX_GRID_SIDE:
        raise InputError(
            f"size.longest_edge is {longest}; tiles of {tile} pixels make a grid of {columns} x {rows}, "
            f"and {_MAX_GRID_SIDE} x {_MAX_GRID_SIDE} is the largest that the tokenizer has tokens for"
        )
    return columns, rows


def _to_longest_edge(height: int, width: int, longest: int) -> tuple[int, int]:
    """(height, width) with the longer side ``longest``, the other rounded up to even; then below 4096.

    Source: ``_resize_output_size_rescale_to_max_len`` and ``_resize_output_size_scale_below_upper_bound``.
    """
    aspect_ratio = width / height
    if width >= height:
        height, width = int(longest / aspect_ratio), longest
        height += height % 2
    else:
        height, width = longest, int(longest * aspect_ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    aspect_ratio = width / height
    if width >= height and width > _MAX_IMAGE_SIDE:
        height, width = int(_MAX_IMAGE_SIDE / aspect_ratio), _MAX_IMAGE_SIDE
    elif height > width and height > _MAX_IMAGE_SIDE:
        height, width = _MAX_IMAGE_SIDE, int(_MAX_IMAGE_SIDE * aspect_ratio)
    return max(height, 1), max(width, 1)
