"""MiniCPM-V 4.6 and 4.7 and MiniCPM-OCR: the whole image near one number of pixels, and slices of larger ones, each
near it too.

Follows transformers 5.23: ``MiniCPMV4_6ImageProcessor`` in models/minicpmv4_6/image_processing_minicpmv4_6.py and
``MiniCPMV4_6Processor.replace_image_token`` in models/minicpmv4_6/processing_minicpmv4_6.py, which 4.7 has too; and
``MiniCPMV4_6VideoProcessor`` and ``replace_video_token`` beside them, to which a frame is an image. Of MiniCPM-OCR:
``MiniCPMOcrImageProcessor`` in models/minicpm_ocr/image_processing_minicpm_ocr.py.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlmplan.architecture.images.settings import count, flag
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed

DOWNSAMPLE_MODES = {"16x": 4, "4x": 2}
"""``downsample_mode``, and how many patches a side are one token in it."""
NUMBER_TOKENS = 3
"""``<image_id>0</image_id>`` before each image (``use_image_id``), as long as its number has one digit."""
OCR_TYPE = "minicpm_ocr"
NUMBERED_TYPES = ("minicpmv4_6", OCR_TYPE)
"""Whose processors number videos too."""
MODEL_TYPES = (*NUMBERED_TYPES, "minicpmv4_7")


def minicpm_ocr_shape(image: Image) -> ImageShape:
    """MiniCPM-V's; ``small_image_upsize`` says whether images of few pixels are enlarged.

    Raises InputError where that depends on what is on the image.
    """
    upsize = image.preprocessor.get("small_image_upsize") or "always"
    if upsize not in ("always", "never"):
        why = "always or never; what adaptive makes of an image depends on the letters on it"
        raise not_allowed("", "preprocessor_config.json: small_image_upsize", upsize, why)
    return minicpmv_shape(image, enlarges_small=upsize == "always")


def minicpmv_shape(image: Image, *, enlarges_small: bool = True) -> ImageShape:
    """A start and an end token around the features of the whole image and of each slice, a line break between rows.

    Raises InputError for a ``downsample_mode`` that there is not, and one that is not the model's own.
    """
    settings = image.preprocessor
    resolution, patch = count(settings, "scale_resolution", 448), count(settings, "patch_size", 14)
    factor = _merge_factor(image)
    rows, columns = _grid(
        image, count(settings, "max_slice_nums", 9), resolution, slices=flag(settings, "slice_mode", True)
    )
    has_slices = rows * columns > 1
    step = patch * factor
    whole = _resized(image.height, image.width, resolution, step, enlarges=enlarges_small and not has_slices)
    slice_size = _slice(image, rows, columns, resolution, step) if has_slices else whole
    num_slices = rows * columns if has_slices else 0
    num_features = (math.prod(whole) + num_slices * math.prod(slice_size)) // step**2
    num_marks = 2 * (1 + num_slices) + (rows - 1 if has_slices else 0)
    return ImageShape(
        num_tokens=num_features + num_marks + (NUMBER_TOKENS if flag(settings, "use_image_id", True) else 0),
        num_placeholder_tokens=num_features,
        num_vision_sequences=1 + num_slices,
        num_patch_columns=slice_size[1] // patch,
        num_patch_rows=slice_size[0] // patch,
        resized_width=slice_size[1] * columns,
        resized_height=slice_size[0] * rows,
        num_tile_columns=columns,
        num_tile_rows=rows,
        num_overview_columns=whole[1] // patch if has_slices else 0,
        num_overview_rows=whole[0] // patch if has_slices else 0,
    )


def more_digits(config: Mapping[str, Any], settings: Mapping[str, Any] | None, *, images: int, videos: int) -> int:
    """Tokens of the numbers before the images and videos of a sample beyond one digit each, of which the published
    tokenizers have a token for every one; 4.7 numbers no videos."""
    model_type = config.get("model_type")
    if model_type not in MODEL_TYPES or not flag(settings or {}, "use_image_id", True):
        return 0
    counts = (images, videos if model_type in NUMBERED_TYPES else 0)
    return sum(len(str(place)) - 1 for count in counts for place in range(10, count))


def minicpmv_clip(frame: Image, image_settings: Mapping[str, Any], num_frames: int) -> ImageShape:
    """A video of frames like ``frame``, whose settings are those of the processor of videos: a number before it where
    ``image_settings`` of the processor of images say so, and none in 4.7 (``_prepend_local_ids``)."""
    one = minicpmv_shape(replace(frame, preprocessor={**frame.preprocessor, "use_image_id": False}))
    has_number = frame.config.get("model_type") in NUMBERED_TYPES and flag(image_settings, "use_image_id", True)
    return replace(
        one,
        num_tokens=num_frames * one.num_tokens + (NUMBER_TOKENS if has_number else 0),
        num_placeholder_tokens=num_frames * one.num_placeholder_tokens,
        num_vision_sequences=num_frames * one.num_vision_sequences,
        num_frames=num_frames,
        is_clip=True,
    )


def _merge_factor(image: Image) -> int:
    """Patches a side that are one token: the model and its processor are told apart, and have to agree."""
    modes = {
        "config.json": image.config.get("downsample_mode"),
        "preprocessor_config.json": image.preprocessor.get("downsample_mode"),
    }
    for name, mode in modes.items():
        if mode is not None and mode not in DOWNSAMPLE_MODES:
            raise not_allowed("", f"{name}: downsample_mode", mode, f"one of {', '.join(DOWNSAMPLE_MODES)}")
    default = "4x" if image.config.get("model_type") == OCR_TYPE else "16x"
    own, made_for = (mode or default for mode in modes.values())
    if own != made_for:
        raise InputError(
            f"config.json: downsample_mode is {own}, but that of preprocessor_config.json is {made_for}; the model "
            f"refuses as many features as its processor makes room for, so both have to be the same"
        )
    return DOWNSAMPLE_MODES[own]


def _whole_steps(length: float, step: int) -> int:
    """``ensure_divide``."""
    return max(round(length / step) * step, step)


def _resized(height: float, width: float, resolution: int, step: int, *, enlarges: bool) -> tuple[int, int]:
    """``find_best_resize``: (height, width) of about ``resolution ** 2`` pixels, smaller ones as they are unless
    ``enlarges``, in whole steps."""
    if height * width > resolution**2 or enlarges:
        aspect_ratio = width / height
        height = int(resolution / math.sqrt(aspect_ratio))
        width = int(height * aspect_ratio)
    return _whole_steps(height, step), _whole_steps(width, step)


def _slice(image: Image, rows: int, columns: int, resolution: int, step: int) -> tuple[int, int]:
    """``get_refine_size``: (height, width) of each slice."""
    height, width = _whole_steps(image.height, rows), _whole_steps(image.width, columns)
    return _resized(height / rows, width / columns, resolution, step, enlarges=True)


def _grid(image: Image, most: int, resolution: int, *, slices: bool) -> tuple[int, int]:
    """``get_sliced_grid``: (rows, columns) nearest the image's proportions; (1, 1) where it is not sliced."""
    wanted = min(math.ceil(image.width * image.height / resolution**2), most)
    if wanted <= 1 or not slices:
        return 1, 1
    log_ratio = math.log(image.width / image.height)
    best, least = (1, 1), math.inf
    for number in (wanted - 1, wanted, wanted + 1):
        if number == 1 or number > most:
            continue
        for rows in range(1, number + 1):
            if number % rows:
                continue
            error = abs(log_ratio - math.log(number // rows / rows))
            if error < least or (error == least and rows > best[0]):
                best, least = (rows, number // rows), error
    return best
