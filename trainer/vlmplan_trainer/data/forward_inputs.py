"""What the forward of a model's class can be given."""

import inspect
from typing import Any

from vlmplan.errors import InputError
from vlmplan_trainer.probe import CAUSAL_TYPES_WITH_IMAGES


def accepted_names(model_type: str) -> set[str]:
    """The inputs that the forward of transformers' vision-language class of ``model_type`` names."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    is_causal = model_type in CAUSAL_TYPES_WITH_IMAGES
    mapping = MODEL_FOR_CAUSAL_LM_MAPPING if is_causal else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if model_type not in CONFIG_MAPPING or CONFIG_MAPPING[model_type] not in mapping:
        raise InputError(f"model_type is {model_type!r}; transformers trains no model of that type on images and text")
    model_class: Any = mapping[CONFIG_MAPPING[model_type]]
    return set(inspect.signature(model_class.forward).parameters) - {"self", "kwargs"}
