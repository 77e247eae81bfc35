"""Native resolution below a longest edge: mistral3, lighton_ocr, and Pixtral-12B, which is llava with a pixtral tower.

Follows transformers 5.23: ``get_resize_output_image_size`` in models/pixtral/image_processing_pixtral.py
(``PixtralImageProcessor``) and ``PixtralProcessor.replace_image_token``.
"""

import math

from vlmplan.architecture.images.fixed import llava_shape
from vlmplan.architecture.images.settings import Settings, count, section, side, sides
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError


def pixtral_shape(image: Image, *, default_merge_size: int) -> ImageShape:
    """Shrunk to the longest edge, then each side rounded up to whole merged patches; never enlarged.

    Every row of tokens ends with ``[IMG_BREAK]``, the last with ``[IMG_END]``: one text token per row. The
    patch size of preprocessor_config.json is not used, since ``PixtralProcessor`` overrules it with its own
    times ``spatial_merge_size``; both are those of config.json.
    Raises InputError for an image so thin that the longest edge leaves nothing of it.
    """
    vision = section(image.config, "vision_config")
    patch_size = side(vision, "patch_size", 16)
    token_side = patch_size * count(image.config, "spatial_merge_size", default_merge_size)
    resized_height, resized_width = _resized(image, token_side)
    rows, columns = resized_height // token_side, resized_width // token_side
    return ImageShape(
        num_tokens=rows * (columns + 1),
        num_placeholder_tokens=rows * columns,
        num_vision_sequences=1,
        num_patch_columns=resized_width // patch_size,
        num_patch_rows=resized_height // patch_size,
        resized_width=resized_width,
        resized_height=resized_height,
    )


def _resized(image: Image, token_side: int) -> tuple[int, int]:
    """(height, width) within the longest edge, rounded up to multiples of ``token_side``."""
    max_height, max_width = _longest_edges(image.preprocessor)
    height, width = image.height, image.width
    ratio = max(height / max_height, width / max_width)
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    if not height or not width:
        raise InputError(f"image {image.text} is too thin: within {max_width}x{max_height} no pixel of it is left")
    return ((height - 1) // token_side + 1) * token_side, ((width - 1) // token_side + 1) * token_side


def lighton_ocr_shape(image: Image) -> ImageShape:
    """LightOnOCR: sides are rounded up to the patches of preprocessor_config.json, and what merged patches leave of
    them is no token; none stands between rows (``LightOnOcrProcessor.replace_image_token``)."""
    patch_size = side(section(image.config, "vision_config"), "patch_size", 14)
    token_side = patch_size * count(image.config, "spatial_merge_size", 2)
    height, width = _resized(image, side(image.preprocessor, "patch_size", 16))
    num_tokens = (height // token_side) * (width // token_side)
    return ImageShape(
        num_tokens=num_tokens,
        num_placeholder_tokens=num_tokens,
        num_vision_sequences=1,
        num_patch_columns=width // patch_size,
        num_patch_rows=height // patch_size,
        resized_width=width,
        resized_height=height,
    )


def mistral3_shape(image: Image) -> ImageShape:
    return pixtral_shape(image, default_merge_size=2)


def llava_or_pixtral_shape(image: Image) -> ImageShape:
    """Pixtral-12B is published as ``llava`` with a ``pixtral`` tower and a PixtralProcessor."""
    if section(image.config, "vision_config").get("model_type") == "pixtral":
        return pixtral_shape(image, default_merge_size=1)
    return llava_shape(image)


def _longest_edges(preprocessor: Settings) -> tuple[int, int]:
    """(height, width) in pixels that the image must not exceed."""
    size = section(preprocessor, "size")
    if "longest_edge" in size:
        edge = count(size, "longest_edge", 1024)
        return edge, edge
    return sides(preprocessor, "size", 1024)
