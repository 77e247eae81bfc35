"""Which options of VLM-R1's and R1-V's scripts change for another recipe: batch, checkpoints and adapters' rank."""

from typing import Final

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict
from vlmplan.other_trainers.vision_scripts.vlm_r1 import VLM_R1
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import TaskTrainer
from vlmplan.workload import Workload

FOLLOWING: Final = ("vision_activation_checkpointing", "lora_alpha")
"""Fields of a recipe that follow from the others as VLM-R1 is read."""
DECIDED: Final = ("micro_batch", "grad_accum", "activation_checkpointing", "lora_rank")
"""Those that options decide."""


def vlm_r1_changes(before: tuple[Recipe, Workload], after: tuple[Recipe, Workload]) -> JsonDict:
    """The options with other values. Raises InputError for what no option says."""
    one, other = before[0], after[0]
    follows = {name: getattr(other, name) for name in (*FOLLOWING, *DECIDED)}
    if one.with_changes(**follows) != other or before[1] != after[1] or other.micro_batch % _rows(other):
        raise InputError(f"scripts of {VLM_R1} and R1-V have no option for it")
    mine, its = _written(one), _written(other)
    return {key: value for key, value in its.items() if mine.get(key) != value}


def _rows(recipe: Recipe) -> int:
    """Rows of each sample: R1-V makes all answers to a prompt of one."""
    is_of_r1_v = recipe.task is not None and recipe.task.trainer is TaskTrainer.R1_V
    return recipe.task.num_generations if recipe.task is not None and is_of_r1_v else 1


def _written(recipe: Recipe) -> JsonDict:
    """The options that say what can change."""
    return {
        "per_device_train_batch_size": recipe.micro_batch // _rows(recipe),
        "gradient_accumulation_steps": recipe.grad_accum,
        "gradient_checkpointing": recipe.activation_checkpointing,
        **({"lora_r": recipe.lora_rank} if recipe.trains_adapters else {}),
    }
