"""Finding a model by what the user calls it: packaged alias, Hugging Face id, folder or config.json.

The packaged models (``data/models``) need neither network nor disk space for weights. The Hub and transformers are
asked here and nowhere else, so that functions of ``ModelFiles`` are pure.
"""

from vlmplan.models.description import (
    FoundModel,
    brings_own_code,
    context_length,
    described,
    parsed_config,
    qformer_positions,
    sees_nothing,
    stored_dtype,
    takes_images,
    why_unsupported,
)
from vlmplan.models.find import alias_of_absent, find_model, found_model
from vlmplan.models.given import given_model
from vlmplan.models.packaged import (
    PACKAGED_MODELS,
    PackagedModel,
    nearest_aliases,
    packaged_files,
    packaged_model,
    packaged_models,
)
from vlmplan.models.tree import model_tree

__all__ = [
    "PACKAGED_MODELS",
    "FoundModel",
    "PackagedModel",
    "alias_of_absent",
    "brings_own_code",
    "context_length",
    "described",
    "find_model",
    "found_model",
    "given_model",
    "model_tree",
    "nearest_aliases",
    "packaged_files",
    "packaged_model",
    "packaged_models",
    "parsed_config",
    "qformer_positions",
    "sees_nothing",
    "stored_dtype",
    "takes_images",
    "why_unsupported",
]
