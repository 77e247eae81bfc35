"""Reward models: which models score rows, and what is planned of them."""

from vlmplan.model_types.reward_models import no_score
from vlmplan.recipe.choices import LossKind
from vlmplan.rules.base import RuleBook, RuleContext

REWARD_RULES = RuleBook()


@REWARD_RULES.error("transformers 5.23 modeling_auto.py MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES; trl 1.16")
def reward_models_score_rows(context: RuleContext) -> str | None:
    recipe, model = context.recipe, context.model
    if not recipe.scores_rows:
        is_its = recipe.loss is LossKind.BRADLEY_TERRY
        return "--loss bradley-terry is of --task reward; give --loss chunked, full or model" if is_its else None
    reason = None if model is None else no_score(model.model_type)
    if model is not None and reason is not None:
        return f"--task reward does not go with {model.id}: {reason}; give a language model, such as qwen3-4b"
    if recipe.loss is not LossKind.BRADLEY_TERRY:
        return f"--loss {recipe.loss.value} does not go with --task reward, which has a loss of its own; leave it off"
    return "--liger-layers is not planned with --task reward; leave it off" if recipe.liger_layers else None
