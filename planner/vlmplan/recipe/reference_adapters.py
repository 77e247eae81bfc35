"""With which adapters the reference of a task runs, where it is the trained model."""

from vlmplan.recipe.recipe import Recipe
from vlmplan.recipe.task_choices import Reference


def copies_adapters(recipe: Recipe) -> bool:
    """Whether it has a copy of the trained ones: where that is asked for, and in axolotl's GRPO, whose trainer gets a
    model that has them (``grpo_trainer.py`` of TRL 1.9: ``add_adapter("ref")``)."""
    task = recipe.task
    is_given = task is not None and task.is_of_axolotl and task.is_grpo
    return recipe.reference is Reference.ADAPTER_COPY or (is_given and recipe.reference is Reference.ADAPTER_OFF)


def runs_without_adapters(recipe: Recipe) -> bool:
    """Whether they are switched off."""
    return recipe.reference is Reference.ADAPTER_OFF and not copies_adapters(recipe)
