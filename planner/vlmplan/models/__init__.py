"""Finding a model by what the user calls it: packaged alias, Hugging Face id, folder or config.json.

The packaged models (``data/models``) need neither network nor disk space for weights. The Hub and transformers are
asked here and nowhere else, so that functions of ``ModelFiles`` are pure.
"""

# pyright: reportUnusedImport=false
from vlmplan.models.description import (
    context_length,
    described,
    qformer_positions,
    sees_nothing,
    stored_dtype,
    takes_images,
    why_unsupported,
)
from vlmplan.models.find import alias_of_absent, find_model, found_model
from vlmplan.models.given import given_model
from vlmplan.models.packaged import packaged_models
