"""The image shape of every model_type that takes images."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vlmplan.architecture.images.settings import FileSettings, file_settings
from vlmplan.architecture.images.shape import Image, ImageShape
from vlmplan.errors import InputError, UnknownNameError

_SHAPES: dict[str, tuple[str, str]] = {
    "aria": ("fixed", "aria_shape"),
    "aya_vision": ("dynamic_tiles", "aya_vision_shape"),
    "blip-2": ("fixed", "query_shape"),
    "cohere2_vision": ("dynamic_tiles", "cohere2_vision_shape"),
    "cohere_compass": ("smart_resize", "qwen3_vl_shape"),
    "cosmos3_omni": ("smart_resize", "qwen3_vl_shape"),
    "deepseek_ocr2": ("dynamic_tiles", "deepseek_ocr2_shape"),
    "deepseek_vl": ("fixed", "deepseek_vl_shape"),
    "deepseek_vl_hybrid": ("fixed", "deepseek_vl_hybrid_shape"),
    "ernie4_5_vl_moe": ("smart_resize", "ernie4_5_vl_shape"),
    "exaone4_5": ("smart_resize", "qwen2_vl_shape"),
    "fast_vlm": ("fixed", "fast_vlm_shape"),
    "florence2": ("florence2", "florence2_shape"),
    "gemma3": ("fixed", "gemma3_shape"),
    "gemma3n": ("fixed", "gemma3n_shape"),
    "gemma4": ("gemma4", "gemma4_shape"),
    "gemma4_unified": ("gemma4", "gemma4_unified_shape"),
    "glm46v": ("smart_resize", "glm4v_shape"),
    "glm4v": ("smart_resize", "glm4v_shape"),
    "glm4v_moe": ("smart_resize", "glm4v_shape"),
    "glm_ocr": ("smart_resize", "glm4v_shape"),
    "glmga": ("smart_resize", "glmga_shape"),
    "got_ocr2": ("fixed", "got_ocr2_shape"),
    "granite4_vision": ("granite4_vision", "granite4_vision_shape"),
    "granite_docling": ("granite_docling", "granite_docling_shape"),
    "hunyuan_vl": ("smart_resize", "hunyuan_vl_shape"),
    "hyperclovax_vision_v2": ("smart_resize", "qwen2_vl_shape"),
    "idefics2": ("idefics", "idefics2_shape"),
    "idefics3": ("idefics", "idefics3_shape"),
    "instructblip": ("fixed", "query_shape"),
    "internvl": ("dynamic_tiles", "internvl_shape"),
    "janus": ("fixed", "janus_shape"),
    "kimi_k25": ("kimi_k25", "kimi_k25_shape"),
    "lfm2_vl": ("lfm2_vl", "lfm2_vl_shape"),
    "lfm3_vl": ("smart_resize", "qwen3_vl_shape"),
    "lighton_ocr": ("pixtral", "lighton_ocr_shape"),
    "llama4": ("llama4", "llama4_shape"),
    "llava": ("pixtral", "llava_or_pixtral_shape"),
    "llava_next": ("anyres", "llava_next_shape"),
    "llava_next_video": ("anyres", "llava_next_shape"),
    "llava_onevision": ("anyres", "llava_onevision_shape"),
    "minicpm_ocr": ("minicpmv", "minicpm_ocr_shape"),
    "minicpmv4_6": ("minicpmv", "minicpmv_shape"),
    "minicpmv4_7": ("minicpmv", "minicpmv_shape"),
    "mistral3": ("pixtral", "mistral3_shape"),
    "mllama": ("mllama", "mllama_shape"),
    "molmo2": ("molmo2", "molmo2_shape"),
    "muse_glimmer": ("muse_glimmer", "muse_glimmer_shape"),
    "ovis2": ("dynamic_tiles", "ovis2_shape"),
    "paddleocr_vl": ("smart_resize", "paddleocr_vl_shape"),
    "paligemma": ("fixed", "paligemma_shape"),
    "phi4_multimodal": ("phi4_multimodal", "phi4_multimodal_shape"),
    "pp_chart2table": ("fixed", "got_ocr2_shape"),
    "qianfan_ocr": ("dynamic_tiles", "internvl_shape"),
    "qwen": ("fixed", "qwen_shape"),
    "qwen2_5_omni_thinker": ("smart_resize", "qwen2_vl_shape"),
    "qwen2_5_vl": ("smart_resize", "qwen2_vl_shape"),
    "qwen2_vl": ("smart_resize", "qwen2_vl_shape"),
    "qwen3_5": ("smart_resize", "qwen3_vl_shape"),
    "qwen3_5_moe": ("smart_resize", "qwen3_vl_shape"),
    "qwen3_omni_moe_thinker": ("smart_resize", "qwen3_vl_shape"),
    "qwen3_vl": ("smart_resize", "qwen3_vl_shape"),
    "qwen3_vl_moe": ("smart_resize", "qwen3_vl_shape"),
    "qwen4_exp": ("smart_resize", "qwen3_vl_shape"),
    "smolvlm": ("idefics", "idefics3_shape"),
    "video_llama_3": ("smart_resize", "video_llama_3_shape"),
    "video_llava": ("fixed", "video_llava_shape"),
    "vipllava": ("fixed", "llava_shape"),
}
"""The module of this package and its function, which is imported when a model of the type is asked about."""

RESIZED_ANYWAY = frozenset({"lfm2_vl"})
"""Whose processors do not look at ``do_resize``."""

IMAGE_MODEL_TYPES = tuple(_SHAPES)
"""The ``model_type`` values of config.json that ``image_shape`` knows."""


def is_bounded_by_pixels(model_type: str) -> bool:
    """Whether the model's processor keeps the area of a single image within ``min_pixels`` and ``max_pixels``. GLM-4V's
    does so for all frames together that an image counts as."""
    module, function = _SHAPES.get(model_type, ("", ""))
    return module == "smart_resize" and not function.startswith("glm")


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
    if preprocessor.get("do_resize") is False and model_type not in RESIZED_ANYWAY:
        raise InputError("preprocessor_config.json: do_resize is False; images that are not resized are not supported")
    image = Image(
        config=named_config,
        preprocessor=preprocessor,
        width=width,
        height=height,
        num_images_per_sample=num_images_per_sample,
    )
    module, function = _SHAPES[model_type]
    return getattr(import_module(f"vlmplan.architecture.images.{module}"), function)(image)
