"""What NeMo AutoModel has a key for, of what can change of a setup that is read from its recipe."""

from typing import Final

from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.workload import ModelFiles

DECIDED: Final = (
    *("micro_batch", "grad_accum", "lora_rank", "lora_alpha", "attention", "expandable_segments"),
    *("activation_checkpointing", "vision_activation_checkpointing", "offload_params", "offload_optimizer"),
    *("reshard_after_forward", "sync_each_batch"),
)
"""Fields of a recipe that its keys decide, and the allocator's variable; all else is as it was read."""


def beyond_nemo_automodel(present: Recipe, recipe: Recipe, model: ModelFiles) -> str | None:
    """Why NeMo AutoModel, which trains ``present``, does not train ``recipe``; None if it does."""
    del model
    decided = {name: getattr(recipe, name) for name in DECIDED}
    if present.with_changes(**decided) != recipe or Offload.NVME in (recipe.offload_params, recipe.offload_optimizer):
        return f"{NEMO_AUTOMODEL}'s recipes have no key for it"
    return None
