"""Which options of VLM-R1's scripts change for another recipe: batch, checkpoints and adapters' rank."""

from typing import Final

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.vision_scripts.vlm_r1 import VLM_R1
from vlmplan.recipe import Recipe
from vlmplan.workload import Workload

FOLLOWING: Final = ("vision_activation_checkpointing", "lora_alpha")
"""Fields of a recipe that follow from the others as VLM-R1 is read."""
DECIDED: Final = ("micro_batch", "grad_accum", "activation_checkpointing", "lora_rank")
"""Those that options decide."""


def vlm_r1_changes(before: tuple[Recipe, Workload], after: tuple[Recipe, Workload]) -> JsonDict:
    """The options with other values. Raises InputError for what no option says."""
    one, other = before[0], after[0]
    follows = {name: getattr(other, name) for name in (*FOLLOWING, *DECIDED)}
    if one.with_changes(**follows) != other or before[1] != after[1]:
        raise InputError(f"{VLM_R1}'s scripts have no option for it")
    mine, its = _written(one), _written(other)
    return {key: value for key, value in its.items() if mine.get(key) != value}


def _written(recipe: Recipe) -> JsonDict:
    """The options that say what can change."""
    return {
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_checkpointing": recipe.activation_checkpointing,
        **({"lora_r": recipe.lora_rank} if recipe.trains_adapters else {}),
    }
