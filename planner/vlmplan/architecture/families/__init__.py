"""Families: one file per kind of model, from ``config.json`` to the module tree.

``FAMILIES`` maps a Hugging Face model_type to the module that builds it: a function ``build(config) -> Model``.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vlmplan.architecture.config import Config
from vlmplan.architecture.model import Model
from vlmplan.errors import InputError, UnknownNameError

FAMILIES: Mapping[str, str] = {
    "blip-2": "blip_2",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma3",
    "gemma3_text": "gemma",
    "glm4v": "glm4v",
    "gpt2": "gpt2",
    "idefics2": "idefics2",
    "idefics3": "idefics3",
    "instructblip": "instructblip",
    "internvl": "internvl",
    "llama": "llama",
    "llava": "llava",
    "llava_next": "llava_next",
    "llava_onevision": "llava_onevision",
    "mistral": "llama",
    "mistral3": "mistral3",
    "mixtral": "mixtral",
    "mllama": "mllama",
    "opt": "opt",
    "ovis2": "ovis2",
    "paligemma": "paligemma",
    "phi3": "phi3",
    "qwen": "qwen",
    "qwen2": "llama",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen2_vl": "qwen2_vl",
    "qwen3": "llama",
    "qwen3_moe": "mixtral",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl_moe",
    "smolvlm": "idefics3",
}


def build_model(values: Mapping[str, Any]) -> Model:
    """The module tree of a ``config.json``.

    Raises UnknownNameError for a model_type without a family, InputError for values that cannot be.
    """
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InputError("config.json has no model_type; it does not describe a Hugging Face model")
    if model_type not in FAMILIES:
        raise UnknownNameError("model_type", model_type, FAMILIES)
    family = import_module(f"vlmplan.architecture.families.{FAMILIES[model_type]}")
    return family.build(Config(values))
