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
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3_text": "gemma",
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen2_vl": "qwen2_vl",
    "qwen3": "llama",
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
