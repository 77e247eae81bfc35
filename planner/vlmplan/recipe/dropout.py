"""Whether dropout is switched off while a task trains."""

from vlmplan.recipe.recipe import Recipe
from vlmplan.recipe.task_choices import TaskTrainer


def switches_dropout_off(recipe: Recipe) -> bool:
    """TRL's ``disable_dropout``, which is on but for GRPO (1.16 ``dpo_config.py``, ``reward_config.py``,
    ``kto_config.py``), and off where adapters are to drop out; a file or ``--disable-dropout`` says otherwise.
    Other trainers of these tasks have no key for it.
    """
    task = recipe.task
    if task is not None and task.disables_dropout is not None:
        return task.disables_dropout
    if task is None or task.is_grpo or task.is_of_openrlhf:
        return False
    return task.trainer is not TaskTrainer.TRL or not recipe.trains_adapters or not recipe.lora_dropout
