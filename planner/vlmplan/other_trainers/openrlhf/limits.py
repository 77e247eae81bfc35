"""What OpenRLHF has an option for, of what can change of a setup that is read from its script."""

from typing import Final

from vlmplan.other_trainers.openrlhf.common import OPENRLHF
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.workload import ModelFiles

DECIDED: Final = (
    *("micro_batch", "grad_accum", "method", "lora_rank", "lora_alpha", "lora_targets", "activation_checkpointing"),
    *("zero_stage", "offload_optimizer", "hpz", "attention", "batching", "precision", "expandable_segments"),
)
"""Fields of a recipe that its options decide, and the allocator's variable."""
FOLLOWING: Final = (
    *(
        "zero",
        "adapter_dtype",
        "weight_dtype",
        "input_gradients",
        "use_double_quant",
        "fuses_optimizer",
        "deepspeed_adam",
    ),
    *("vision_activation_checkpointing", "upcasts_frozen"),
)
"""Those that follow from the others as its scripts are read."""


def beyond_openrlhf(present: Recipe, recipe: Recipe, model: ModelFiles) -> str | None:
    """Why OpenRLHF, which trains ``present``, does not train ``recipe``; None if it does."""
    del model
    follows = {name: getattr(recipe, name) for name in (*DECIDED, *FOLLOWING)}
    if present.with_changes(**follows) != recipe:
        return f"{OPENRLHF} has no option for it"
    if recipe.zero_stage is None or recipe.fsdp:
        return f"{OPENRLHF} trains by DeepSpeed alone"
    if recipe.offload_optimizer is Offload.NVME or recipe.method is Method.LORA_8BIT:
        return f"{OPENRLHF} has no option for it"
    if recipe.method is Method.QLORA and recipe.zero_stage == 3:
        return f"4-bit weights of {OPENRLHF} are not planned under ZeRO-3"
    return None
