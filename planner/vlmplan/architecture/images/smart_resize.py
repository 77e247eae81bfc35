"""Native resolution: sides rounded to whole merged patches, the area kept within a budget of pixels.

Follows transformers 5.23: ``smart_resize`` and ``get_number_of_image_patches`` in
models/qwen2_vl/image_processing_qwen2_vl.py (``Qwen2VLImageProcessor``, which Qwen2.5-VL, Qwen3-VL and Qwen3.5 use
too), in models/glm4v/image_processing_glm4v.py (``Glm4vImageProcessor``) and in
models/{ernie4_5_vl_moe,hunyuan_vl,paddleocr_vl,video_llama_3}/image_processing_*.py. Python's ``round`` (half to even)
is part of the rule.
"""

import math
from dataclasses import replace

from vlmplan.architecture.images.settings import Settings, count, edge, section, side
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError

MAX_ASPECT_RATIO = 200


def qwen2_vl_shape(image: Image) -> ImageShape:
    """Qwen2-VL and Qwen2.5-VL: 4 to 1280 tokens by the class, up to 16,384 by the published files."""
    return _qwen_shape(image, default_patch_size=14)


def ernie4_5_vl_shape(image: Image) -> ImageShape:
    """ERNIE 4.5 VL: as Qwen2-VL, 4 to 6177 tokens by the class, which looks at ``size`` alone."""
    return _qwen_shape(image, default_patch_size=14, default_area=(56 * 56, 28 * 28 * 6177), has_old_names=False)


def qwen3_vl_shape(image: Image) -> ImageShape:
    """Qwen3-VL and Qwen3.5, dense and MoE: as Qwen2-VL with patches of 16 pixels."""
    return _qwen_shape(image, default_patch_size=16)


def hunyuan_vl_shape(image: Image) -> ImageShape:
    """HunyuanOCR: as Qwen2-VL, with a token behind each row of an image, and one at either end."""
    shape = _qwen_shape(image, default_patch_size=16, default_area=(512 * 512, 2048 * 2048))
    merge_size = math.isqrt(shape.num_patches // shape.num_tokens)
    num_tokens = shape.num_tokens + shape.num_patch_rows // merge_size + 2
    return replace(shape, num_tokens=num_tokens, num_placeholder_tokens=num_tokens)


def video_llama_3_shape(image: Image) -> ImageShape:
    """VideoLLaMA 3: as Qwen2-VL, but each patch is a token unless preprocessor_config.json merges some."""
    return _qwen_shape(image, default_patch_size=16, default_merge_size=1)


def paddleocr_vl_shape(image: Image) -> ImageShape:
    """PaddleOCR-VL: as Qwen2-VL, except that a side below one merged patch is scaled up first, height before width."""
    patch_size, merge_size = patch_and_merge_size(
        image.preprocessor, section(image.config, "vision_config"), default_patch_size=14
    )
    factor, height, width = patch_size * merge_size, image.height, image.width
    if height < factor:
        height, width = factor, round(width * factor / height)
    if width < factor:
        height, width = round(height * factor / width), factor
    return _qwen_shape(image, default_patch_size=14, default_area=(384 * 384, 1536 * 1536), sides=(height, width))


def glm4v_shape(image: Image, *, expand_factor: int = 1) -> ImageShape:
    """GLM-4.1V: as Qwen2-VL, except that an image counts as a clip of ``temporal_patch_size`` frames.

    So the budget of pixels is that of all frames together: half of it is left for a picture. A side below
    one merged patch is scaled up first.
    """
    vision = section(image.config, "vision_config")
    patch_size, merge_size = patch_and_merge_size(image.preprocessor, vision, default_patch_size=14)
    factor = patch_size * merge_size * expand_factor
    num_frames = count(image.preprocessor, "temporal_patch_size", count(vision, "temporal_patch_size", 2))
    height, width = image.height, image.width
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    min_pixels = edge(image.preprocessor, "size", "shortest_edge", 112 * 112)
    max_pixels = edge(image.preprocessor, "size", "longest_edge", 28 * 28 * 15000)
    check_aspect_ratio(image, height=height, width=width)
    height, width = smart_resize(
        height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels, num_frames=num_frames
    )
    return shape_of_merged(height=height, width=width, patch_size=patch_size, merge_size=merge_size)


def glmga_shape(image: Image) -> ImageShape:
    """GLM-4.6V's with sides that are multiples of ``patch_expand_factor`` merged patches: ``GlmgaImageProcessor``,
    whose twin without torchvision reads no such factor."""
    return glm4v_shape(image, expand_factor=count(image.preprocessor, "patch_expand_factor", 1))


def smart_resize(
    height: int,
    width: int,
    *,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    num_frames: int = 1,
    num_rounded_frames: int | None = None,
) -> tuple[int, int]:
    """(height, width) in pixels, multiples of ``factor``, with ``num_frames`` x height x width in the budget.

    Whether they are in it, videos ask of ``num_rounded_frames``; None: of as many. The budget can be left at the edges:
    rounding up to ``min_pixels`` may pass ``max_pixels`` where the two are close, and a side never falls below
    ``factor``.
    """
    rounded_height = round(height / factor) * factor
    rounded_width = round(width / factor) * factor
    rounded_pixels = (num_rounded_frames or num_frames) * rounded_height * rounded_width
    if rounded_pixels > max_pixels:
        shrink = math.sqrt((num_frames * height * width) / max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if rounded_pixels < min_pixels:
        stretch = math.sqrt(min_pixels / (num_frames * height * width))
        return (
            math.ceil(height * stretch / factor) * factor,
            math.ceil(width * stretch / factor) * factor,
        )
    return rounded_height, rounded_width


def _qwen_shape(
    image: Image,
    *,
    default_patch_size: int,
    default_merge_size: int = 2,
    default_area: tuple[int, int] = (56 * 56, 28 * 28 * 1280),
    sides: tuple[int, int] | None = None,
    has_old_names: bool = True,
) -> ImageShape:
    """``default_area``: the least and the most pixels; ``sides``: (height, width), None for those of the image;
    ``has_old_names``: whether ``min_pixels`` and ``max_pixels`` are looked at."""
    vision = section(image.config, "vision_config")
    patch_size, merge_size = patch_and_merge_size(
        image.preprocessor, vision, default_patch_size=default_patch_size, default_merge_size=default_merge_size
    )
    # The edges of size are numbers of pixels here. Older files name them min_pixels and max_pixels, outside
    # of size; Qwen2VLImageProcessor lets these overrule it.
    min_pixels = count(image.preprocessor, "min_pixels", 0) if has_old_names else 0
    min_pixels = min_pixels or edge(image.preprocessor, "size", "shortest_edge", default_area[0])
    max_pixels = count(image.preprocessor, "max_pixels", 0) if has_old_names else 0
    max_pixels = max_pixels or edge(image.preprocessor, "size", "longest_edge", default_area[1])
    height, width = sides or (image.height, image.width)
    check_aspect_ratio(image, height=height, width=width)
    factor = patch_size * merge_size
    height, width = smart_resize(height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
    return shape_of_merged(height=height, width=width, patch_size=patch_size, merge_size=merge_size)


def patch_and_merge_size(
    processor: Settings, vision: Settings, *, default_patch_size: int, default_merge_size: int = 2
) -> tuple[int, int]:
    """Pixels of a patch's side, and patches of a token's side, by the processor's settings and the tower's."""
    patch_size = side(processor, "patch_size", side(vision, "patch_size", default_patch_size))
    merge_size = count(processor, "merge_size", count(vision, "spatial_merge_size", default_merge_size))
    return patch_size, merge_size


def check_aspect_ratio(image: Image, *, height: int, width: int) -> None:
    """Raise InputError for sides that the processor refuses; ``image`` is named."""
    ratio = max(height, width) / min(height, width)
    if ratio > MAX_ASPECT_RATIO:
        raise InputError(f"image {image.text} has an aspect ratio of {ratio:.4g}; up to {MAX_ASPECT_RATIO} is allowed")


def shape_of_merged(*, height: int, width: int, patch_size: int, merge_size: int) -> ImageShape:
    """An image of (height, width) pixels, whole patches, of which ``merge_size`` x ``merge_size`` are a token each."""
    columns, rows = width // patch_size, height // patch_size
    num_tokens = columns * rows // merge_size**2
    return ImageShape(
        num_tokens=num_tokens,
        num_placeholder_tokens=num_tokens,
        num_vision_sequences=1,
        num_patch_columns=columns,
        num_patch_rows=rows,
        resized_width=width,
        resized_height=height,
    )
