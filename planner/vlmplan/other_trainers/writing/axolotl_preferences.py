"""What axolotl 0.18.0 has of preferences alone, or otherwise than of samples as they are (``core/builders/rl.py``)."""

from typing import Any

from vlmplan.errors import InputError
from vlmplan.other_trainers.assembled import sees
from vlmplan.other_trainers.axolotl.reading import AXOLOTL
from vlmplan.other_trainers.writing.batching import AXOLOTL_BATCHING
from vlmplan.other_trainers.writing.checkpoints import checkpoint_keys
from vlmplan.other_trainers.writing.limits import LimitContext
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Batching, CheckpointKind, LossKind
from vlmplan.recipe.task import Reference
from vlmplan.workload import Workload


def preference_keys(recipe: Recipe, workload: Workload) -> dict[str, Any]:
    """Raises InputError for tasks that it does otherwise."""
    if recipe.task is None:
        return {}
    if not recipe.task.is_of_axolotl:
        raise InputError(f"{AXOLOTL} trains preferences its own way, --task dpo --task-trainer axolotl")
    if sees(workload.model) and workload.images_per_sample:
        raise InputError(f"{AXOLOTL} reads no images of preferences; give --images-per-sample 0")
    precomputes = recipe.reference is Reference.PRECOMPUTED
    return {"rl": recipe.task.kind.value, **({"precompute_ref_log_probs": True} if precomputes else {})}


def checkpoints_of(recipe: Recipe) -> dict[str, Any]:
    """Of samples they are reentrant unless a key says otherwise, of preferences they are not."""
    if recipe.task is None:
        return checkpoint_keys(recipe, CheckpointKind.REENTRANT)
    if recipe.task.reentrant_checkpoints:
        return {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
    return checkpoint_keys(recipe)


def losses_of(context: LimitContext) -> tuple[LossKind, ...]:
    return (LossKind.MODEL, LossKind.LIGER) if context.recipe.task is None else (LossKind.AXOLOTL,)


def batching_of(context: LimitContext) -> tuple[Batching, ...] | None:
    return AXOLOTL_BATCHING.allowed(context) if context.recipe.task is None else (Batching.PADDED,)


def says_adapter_type(recipe: Recipe) -> bool:
    return recipe.task is None and recipe.adapter_dtype is AdapterDtype.MODEL
