"""An encoder and a decoder: what is not planned, or not trained, of models that have both."""

from collections.abc import Iterator

from vlmplan.evaluation import Kept
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import AttentionImplementation, LossKind
from vlmplan.rules.base import RuleBook, RuleContext

ENCODER_DECODER_RULES = RuleBook()


@ENCODER_DECODER_RULES.error(
    "transformers 5.23 masking_utils.py flash_attention_mask, models/bart/modeling_bart.py; torch fully_shard (seen)"
)
def both_stacks_are_planned_so(context: RuleContext) -> str | None:
    model = context.model
    if model is None or not model.is_encoder_decoder:
        return None
    for option, why in _beyond(context.recipe):
        return f"{option} is not for {model.id}, which has an encoder and a decoder: {why}"
    return None


def _beyond(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Options that do not go with such a model, and why."""
    evaluation = recipe.evaluation
    if recipe.attention is AttentionImplementation.FLASH_ATTENTION_2:
        yield (
            "--attention flash_attention_2",
            "it takes the padding of prompts out and puts it back around every layer, which is not planned; give sdpa",
        )
    if recipe.loss not in (LossKind.CHUNKED, LossKind.FULL):
        yield (
            f"--loss {recipe.loss.value}",
            "its own loss is a mean over each micro batch in the type of its logits, and it has no fused one; give "
            "chunked or full",
        )
    if recipe.task is not None:
        yield f"--task {recipe.task.kind.value}", "TRL takes prompt and answer for one text"
    if evaluation is not None and (evaluation.new_tokens or evaluation.kept is not Kept.LOSS):
        yield "--eval-new-tokens or --eval-keeps", "what is evaluated is the loss alone"
    if recipe.fsdp:
        yield "--fsdp", "fully_shard refuses a token table that modules of several groups share; give --zero-stage 3"
    if recipe.trains_adapters and recipe.train_embeddings:
        yield "--train-embeddings", "peft copies one of the tables that share their weight, and no other"
