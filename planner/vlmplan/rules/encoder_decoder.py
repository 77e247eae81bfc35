"""An encoder and a decoder: what is not planned, or not trained, of models that have both."""

from collections.abc import Iterator

from vlmplan.model_types.encoder_decoder import OWN_LOSS_TYPES
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import SEARCHED_LOSSES, AttentionImplementation, LossKind
from vlmplan.recipe.evaluation import Kept
from vlmplan.rules.base import RuleBook, RuleContext

ENCODER_DECODER_RULES = RuleBook()
BLOCK_SPARSE = "bigbird_pegasus"
"""Whose encoder attends to blocks of tokens."""


@ENCODER_DECODER_RULES.error("transformers 5.23 masking_utils.py flash_attention_mask, models/bart/modeling_bart.py")
def both_stacks_are_planned_so(context: RuleContext) -> str | None:
    model = context.model
    if model is None or not model.is_encoder_decoder:
        return None
    for option, why in _beyond(context.recipe, model.model_type):
        return f"{option} is not for {model.id}, which has an encoder and a decoder: {why}"
    return None


def _beyond(recipe: Recipe, model_type: str) -> Iterator[tuple[str, str]]:
    """Options that do not go with such a model, and why."""
    evaluation = recipe.evaluation
    if recipe.autocast is not None and model_type == BLOCK_SPARSE:
        yield (
            f"--precision {recipe.precision.value} in plain PyTorch",
            "its block-sparse attention writes what autocast casts into what it does not (torch: 'Expected self.dtype "
            "to be equal to src.dtype'); give --zero-stage 1, or --precision bf16-pure",
        )
    if recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
        yield (
            "--attention flash_attention_2",
            "it takes the padding of prompts out and puts it back around every layer, which is not planned; give sdpa",
        )
    if model_type in OWN_LOSS_TYPES and recipe.loss is not LossKind.MODEL:
        yield (
            f"--loss {recipe.loss.value}",
            "it predicts each token from several places before it, and its class alone sums that up; give model",
        )
    if model_type not in OWN_LOSS_TYPES and recipe.loss not in (*SEARCHED_LOSSES, LossKind.MODEL):
        yield f"--loss {recipe.loss.value}", "it has no fused loss; give chunked, full or model"
    if recipe.task is not None:
        yield f"--task {recipe.task.kind.value}", "TRL takes prompt and answer for one text"
    if evaluation is not None and (evaluation.new_tokens or evaluation.kept is not Kept.LOSS):
        yield "--eval-new-tokens or --eval-keeps", "what is evaluated is the loss alone"
    if recipe.trains_adapters and recipe.train_embeddings:
        yield "--train-embeddings", "peft copies one of the tables that share their weight, and no other"
