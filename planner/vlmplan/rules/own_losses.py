"""Losses that one trainer of a task has, and no other."""

from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task_choices import TaskTrainer
from vlmplan.recipe.task_losses import LOSSES_OF_TASKS
from vlmplan.rules.base import RuleContext


def wrong_loss(context: RuleContext, trainer: TaskTrainer) -> str | None:
    """A trainer of tasks with another loss or task, or its loss without it."""
    recipe, task, name = context.recipe, context.recipe.task, trainer.value
    own = {kind: loss for (whose, kind), loss in LOSSES_OF_TASKS.items() if whose is trainer}
    asked = LossKind.TEMPERED if recipe.loss is LossKind.TEMPERED_ENTROPY else recipe.loss
    if task is None or task.trainer is not trainer:
        found = next((kind for kind, loss in own.items() if asked is loss), None)
        if found is None:
            return None
        others = "chunked, full or model"
        return f"--loss {recipe.loss.value} is of --task {found.value} with --task-trainer {name}; give --loss {others}"
    if task.kind not in own:
        trained = " or ".join(kind.value for kind in own)
        return f"--task-trainer {name} trains --task {trained}, but --task is {task.kind.value}; leave it off"
    if asked is own[task.kind]:
        return None
    kind = f" in --task {task.kind.value}" if len(own) > 1 else ""
    return f"--loss {recipe.loss.value} is not had by --task-trainer {name}{kind}; give --loss {own[task.kind].value}"
