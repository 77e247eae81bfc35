"""Reward models: the class of transformers that scores rows, and its head in the place of one that knows words.

Sources: ``GenericForSequenceClassification`` in transformers 5.23 ``modeling_layers.py``; TRL 1.16
``trainer/reward_trainer.py``, which sets ``num_labels`` to 1.
"""

from functools import partial
from typing import Any

from vlmplan.model_types.reward_models import no_score
from vlmplan.recipe import Recipe
from vlmplan_trainer.probe import RefusedModelError, model_class, name_head

SCORE = "score"
DRAWN = (f"{SCORE}.weight",)
"""What a checkpoint of a language model lacks, and is drawn at random (``_ignore_seqcls_cross_arch_keys``)."""


def class_for(config: Any, recipe: Recipe) -> Any:
    """The class of the model that the recipe trains; ``config`` is told what that has of its own."""
    if not recipe.scores_rows:
        return model_class(config)
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    reason = no_score(config.model_type)
    if reason is not None:
        raise RefusedModelError("unsupported", reason)
    config.num_labels = 1
    return MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]


def name_head_of(model: Any, recipe: Recipe) -> Any:
    """``model``, which names its head, be that one that scores: it takes no adapter then, and is not packed."""
    if recipe.scores_rows:
        model.get_output_embeddings = partial(getattr, model, SCORE)
        return model
    return name_head(model)


def drawn_weights(recipe: Recipe) -> tuple[str, ...]:
    """The weights that no checkpoint has to have."""
    return DRAWN if recipe.scores_rows else ()
