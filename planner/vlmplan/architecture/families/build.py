"""From a ``config.json`` to the module tree, by its model_type."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vlmplan.architecture.config import Config
from vlmplan.architecture.families.head_widths import refuse_uneven_heads
from vlmplan.architecture.families.text import TEXT_FAMILIES, by_model_type, text_model
from vlmplan.architecture.model import Model
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.model_types.encoder_decoder import BART_TYPES, ENCODER_DECODER_TYPES, HEARING_TYPES, is_encoder_decoder
from vlmplan.recipe.libraries import PLANNED_TRANSFORMERS, TransformersVersion

NO_MODEL_TYPE = "config.json has no model_type; it does not describe a Hugging Face model"
VISION_FAMILIES = by_model_type(
    """aria aya_vision cohere_compass deepseek_ocr2 deepseek_vl deepseek_vl_hybrid ernie4_5_vl_moe exaone4_5 fast_vlm
    florence2 gemma3 gemma4_unified glm46v glm4v glm4v_moe glm_ocr got_ocr2 granite4_vision granite_docling hunyuan_vl
    idefics2 idefics3 instructblip internvl janus kimi_k25 lfm2_vl lfm3_vl lighton_ocr llava llava_next
    llava_next_video llava_onevision minicpmv4_6 mistral3 mllama molmo2 muse_glimmer ovis2 paddleocr_vl paligemma
    phi4_multimodal qianfan_ocr qwen qwen2_5_vl qwen2_vl qwen3_vl qwen3_vl_moe video_llama_3 video_llava vipllava""",
    {
        "aya_vision": "cohere2_vision",
        "blip_2": "blip-2",
        "gemma3n_vl": "gemma3n",
        "gemma4_vl": "gemma4",
        "glm46v": "glmga",
        "got_ocr2": "pp_chart2table",
        "hyperclovax_vision": "hyperclovax_vision_v2",
        "idefics3": "smolvlm",
        "llama4_vl": "llama4",
        "minicpmv4_6": "minicpm_ocr minicpmv4_7",
        "qwen2_5_omni": "qwen2_5_omni_thinker",
        "qwen3_5_vl": "qwen3_5 qwen3_5_moe qwen4_exp",
        "qwen3_omni": "qwen3_omni_moe_thinker",
        "qwen3_vl": "cosmos3_omni",
    },
)
_ENCODER_DECODERS = dict.fromkeys(BART_TYPES, "bart") | dict.fromkeys(HEARING_TYPES, "whisper")
FAMILIES: Mapping[str, str] = dict(sorted((TEXT_FAMILIES | VISION_FAMILIES | _ENCODER_DECODERS).items()))
"""The Hugging Face model_types, and the modules that describe them; those that are not among ``TEXT_FAMILIES`` have a
function ``build(config) -> Model``."""


def has_family(values: Mapping[str, Any]) -> bool:
    """Whether ``build_model`` builds a ``config.json``. It does not where that is of a decoder without its encoder."""
    model_type = values.get("model_type")
    return model_type in FAMILIES and (model_type not in ENCODER_DECODER_TYPES or is_encoder_decoder(values))


def build_model(values: Mapping[str, Any], release: TransformersVersion = PLANNED_TRANSFORMERS) -> Model:
    """The module tree of a ``config.json``, as transformers of this release makes it.

    Raises UnknownNameError for a model_type without a family, InputError for values that cannot be.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError(NO_MODEL_TYPE)
    if not has_family(values):
        raise UnknownNameError("model_type", model_type, FAMILIES)
    config = Config(values, release=release)
    refuse_uneven_heads(config)
    if model_type in TEXT_FAMILIES:
        model = text_model(config)
    else:
        model = import_module(f"vlmplan.architecture.families.{FAMILIES[model_type]}").build(config)
    model.model_type = model_type
    return model
