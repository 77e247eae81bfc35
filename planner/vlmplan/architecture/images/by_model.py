"""The image shape of every model_type that takes images."""

from collections.abc import Callable, Mapping
from typing import Any

from vlmplan.architecture.images.anyres import llava_next_shape, llava_onevision_shape
from vlmplan.architecture.images.dynamic_tiles import internvl_shape, ovis2_shape
from vlmplan.architecture.images.fixed import (
    gemma3_shape,
    llava_shape,
    paligemma_shape,
    query_shape,
    qwen_shape,
)
from vlmplan.architecture.images.gemma4 import gemma4_shape
from vlmplan.architecture.images.idefics import idefics2_shape, idefics3_shape
from vlmplan.architecture.images.mllama import mllama_shape
from vlmplan.architecture.images.pixtral import pixtral_shape
from vlmplan.architecture.images.settings import FileSettings, file_settings, section
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.architecture.images.smart_resize import glm4v_shape, qwen2_vl_shape, qwen3_vl_shape
from vlmplan.errors import InputError, UnknownNameError


def _llava_or_pixtral_shape(image: Image) -> ImageShape:
    """Pixtral-12B is published as ``llava`` with a ``pixtral`` tower and a PixtralProcessor."""
    if section(image.config, "vision_config").get("model_type") == "pixtral":
        return pixtral_shape(image, default_merge_size=1)
    return llava_shape(image)


def _mistral3_shape(image: Image) -> ImageShape:
    return pixtral_shape(image, default_merge_size=2)


_SHAPES: dict[str, Callable[[Image], ImageShape]] = {
    "blip-2": query_shape,
    "gemma3": gemma3_shape,
    "gemma4": gemma4_shape,
    "glm4v": glm4v_shape,
    "idefics2": idefics2_shape,
    "idefics3": idefics3_shape,
    "instructblip": query_shape,
    "internvl": internvl_shape,
    "llava": _llava_or_pixtral_shape,
    "llava_next": llava_next_shape,
    "llava_onevision": llava_onevision_shape,
    "mistral3": _mistral3_shape,
    "mllama": mllama_shape,
    "ovis2": ovis2_shape,
    "paligemma": paligemma_shape,
    "qwen": qwen_shape,
    "qwen2_5_vl": qwen2_vl_shape,
    "qwen2_vl": qwen2_vl_shape,
    "qwen3_5": qwen3_vl_shape,
    "qwen3_5_moe": qwen3_vl_shape,
    "qwen3_vl": qwen3_vl_shape,
    "qwen3_vl_moe": qwen3_vl_shape,
    "smolvlm": idefics3_shape,
}

IMAGE_MODEL_TYPES = tuple(_SHAPES)
"""The ``model_type`` values of config.json that ``image_shape`` knows."""


def image_settings(
    config: Mapping[str, Any], preprocessor_config: Mapping[str, Any] | None
) -> tuple[FileSettings, FileSettings]:
    """Both files as ``image_shape`` reads them: given in their place, they are looked into once for many images."""
    return (
        file_settings(config, "config.json: "),
        file_settings(preprocessor_config or {}, "preprocessor_config.json: "),
    )


def image_shape(
    config: Mapping[str, Any],
    preprocessor_config: Mapping[str, Any] | None,
    *,
    width: int,
    height: int,
    num_images_per_sample: int = 1,
) -> ImageShape:
    """What one image of ``width x height`` pixels becomes in the model that ``config`` describes.

    ``config`` is the content of config.json. ``preprocessor_config`` is the content of
    preprocessor_config.json (or of ``image_processor`` inside processor_config.json, where newer checkpoints
    keep it); None where it is not known. Keys that it lacks take the default of the transformers 5.23 class,
    except sizes that the vision tower fixes, which come from ``config``.

    ``num_images_per_sample`` is how many images stand in one sample. Only llava_onevision cares: it tiles
    the image of a sample that has one, and does not tile those of a sample that has several.

    Raises UnknownNameError for a model type that takes no images or is not known, and InputError for a
    size or a setting that the model's processor would refuse.
    """
    model_type: object = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(f"model_type is {model_type!r}; config.json must name the model's type")
    if model_type not in _SHAPES:
        raise UnknownNameError("model type with images", model_type, _SHAPES)
    named_config, preprocessor = image_settings(config, preprocessor_config)
    if preprocessor.get("do_resize") is False:
        raise InputError("preprocessor_config.json: do_resize is False; images that are not resized are not supported")
    image = Image(
        config=named_config,
        preprocessor=preprocessor,
        width=width,
        height=height,
        num_images_per_sample=num_images_per_sample,
    )
    return _SHAPES[model_type](image)
