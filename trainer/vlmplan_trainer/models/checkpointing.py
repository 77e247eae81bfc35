"""Activation checkpointing: of the language model's layers, and of all others, each for itself.

transformers' ``gradient_checkpointing_enable`` switches both, and makes the results of all embeddings need gradients
(``enable_input_require_grads``), a vision tower's too: a frozen tower then keeps its layers' inputs and runs backward
for nothing. Checkpoints that are not reentrant do not need that.
"""

from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Part
from vlmplan_trainer.models.offloading import offloading_checkpoint
from vlmplan_trainer.models.parts import Parts


def set_checkpointing(model: Any, parts: Parts, recipe: Recipe) -> None:
    """Switch the checkpoints of ``model``, transformers' own, as the recipe says. Raises InputError if it has none."""
    wishes = {
        part: recipe.activation_checkpointing if part is Part.LANGUAGE else recipe.vision_activation_checkpointing
        for part in Part
    }
    switches = [(name, module) for name, module in model.named_modules() if hasattr(module, "gradient_checkpointing")]
    if wishes[Part.LANGUAGE] and not any(parts[name] is Part.LANGUAGE for name, _ in switches):
        raise InputError(f"{type(model).__name__} has no activation checkpointing; give --no-activation-checkpointing")
    checkpointing = offloading_checkpoint if recipe.offload_activations else partial(checkpoint, use_reentrant=False)
    for name, module in switches:
        module.gradient_checkpointing = wishes[parts[name]]
        module._gradient_checkpointing_func = checkpointing
