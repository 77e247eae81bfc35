"""Activation checkpointing: of the language model's layers, and of all others, each for itself.

transformers' ``gradient_checkpointing_enable`` switches both, and makes the results of all embeddings need gradients
(``enable_input_require_grads``), a vision tower's too: a frozen tower then keeps its layers' inputs and runs backward
for nothing. Checkpoints that are not reentrant do not need that.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import PARTS_OF_LAYERS, CheckpointKind, Part
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
    in_parts = recipe.checkpoint_kind is CheckpointKind.PARTS
    for name, module in switches:
        module.gradient_checkpointing = wishes[parts[name]] and not in_parts
        module._gradient_checkpointing_func = checkpointing
        if wishes[parts[name]] and in_parts:
            _checkpoint_parts(module, checkpointing)


def _checkpoint_parts(layer: Any, checkpointing: Callable[..., Any]) -> None:
    """Attention, MLP and norms of ``layer`` run again each by itself, as NeMo AutoModel has them
    (``apply_submodule_checkpointing`` in Automodel@36044ad3 ``components/distributed/activation_checkpointing.py``)."""
    if not isinstance(layer, GradientCheckpointingLayer):
        return
    for names in PARTS_OF_LAYERS:
        found = next((part for name in names if (part := getattr(layer, name, None)) is not None), None)
        if found is not None and "forward" not in vars(found):
            found.forward = partial(_run_again_in_training, found, checkpointing, found.forward)


def _run_again_in_training(
    part: Any, checkpointing: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    if not part.training or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return (
        checkpointing(partial(forward, **kwargs), *args) if args else checkpointing(partial(_by_name, forward), kwargs)
    )


def _by_name(forward: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    return forward(**kwargs)
