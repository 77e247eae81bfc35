"""Packing and rows without padding, as other trainers have them: their limits, and the keys.

Sources: those of ``other_trainers/batching.py``.
"""

from typing import Any, Final

from vlmplan.other_trainers.writing.limits import Limit, LimitContext, always
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, Batching


def _of_text(context: LimitContext) -> tuple[Batching, ...]:
    return (Batching.PADDED,) if context.sees else tuple(Batching)


def _with_flash(context: LimitContext) -> tuple[Batching, ...]:
    return tuple(Batching) if _has_flash(context.recipe) else (Batching.PADDED,)


def _neat(context: LimitContext) -> tuple[Batching, ...]:
    can_pack = _has_flash(context.recipe) and context.recipe.micro_batch == 1
    return (Batching.PADDED, Batching.PACKED) if can_pack else (Batching.PADDED,)


def _has_flash(recipe: Recipe) -> bool:
    return recipe.attention is AttentionImplementation.FLASH_ATTENTION_2


TRL_BATCHING: Final = Limit(
    field="batching",
    allowed=_of_text,
    sentence="it pads data with images; --batching is padded there",
    source="trl/trainer/sft_trainer.py: packing and padding_free are refused for vision datasets",
)
MS_SWIFT_BATCHING: Final = Limit(
    field="batching",
    allowed=_with_flash,
    sentence="its padding_free and packing need --attention flash_attention_2",
    source="arguments/sft_args.py _check_padding_free",
)
LLAMA_FACTORY_BATCHING: Final = Limit(
    field="batching",
    allowed=_neat,
    sentence="of --batching it has packed alone (neat_packing), with --attention flash_attention_2 and --micro-batch 1",
    source="data/collator.py SFTDataCollatorWith4DAttentionMask: 'bsz should be 1 for neat packing'",
)
AXOLOTL_BATCHING: Final = Limit(
    field="batching",
    allowed=lambda context: (Batching.PADDED,) if context.sees else _with_flash(context),
    sentence="its sample_packing and batch_flattening are planned with --attention flash_attention_2, of text",
    source="core/builders/causal.py build_collator; utils/schemas/validation.py check_batch_flattening_fa",
)
SCRIPT_BATCHING: Final = Limit(
    field="batching",
    allowed=always(Batching.PADDED),
    sentence="the script that is written for it pads its batches; --batching is padded",
    source="the script beside training_args.yaml",
)


def packing_keys(recipe: Recipe) -> dict[str, Any]:
    """The keys of TRL and ms-swift for packing."""
    keys = {Batching.PADDING_FREE: {"padding_free": True}, Batching.PACKED: {"packing": True}}
    return keys.get(recipe.batching, {})


def neat_packing_keys(recipe: Recipe) -> dict[str, Any]:
    """The keys of LLaMA-Factory for packing."""
    return {"packing": True, "neat_packing": True} if recipe.batching is Batching.PACKED else {}
