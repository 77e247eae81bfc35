"""The loss by which TRL's trainers keep a model's experts evenly used, and the models with which it stops them."""

from vlmplan.architecture.config import Config
from vlmplan.recipe.task_choices import TaskKind, TaskTrainer
from vlmplan.rules.base import RuleBook, RuleContext
from vlmplan.workload import ModelFiles

ROUTER_RULES = RuleBook()
OUTPUT, WEIGHT, COUNT = "output_router_logits", "router_aux_loss_coef", "num_experts"
DENSE = "is_moe"
"""Where this is false a model of experts has none, but the keys of the loss all the same (Doge)."""


@ROUTER_RULES.error("trl 1.16 trainer/utils.py _fused_forward: load_balancing_loss_func(..., text_config.num_experts)")
def experts_are_counted_where_their_loss_is_added(context: RuleContext) -> str | None:
    task, model = context.recipe.task, context.model
    if (
        task is None
        or task.kind is TaskKind.REWARD
        or task.trainer is not TaskTrainer.TRL
        or model is None
        or model.files is None
    ):
        return None
    reason = uncounted_experts(model.files)
    if reason is None:
        return None
    return (
        f'--task {task.kind.value} with {model.id}: {reason}; "{WEIGHT}": 0.0 and "{OUTPUT}": false in its config.json '
        f"turn that loss off"
    )


def uncounted_experts(files: ModelFiles) -> str | None:
    """Why TRL's fused head stops with a model whose routers have a loss, as a sentence; None where it does not."""
    config = _text_config(files)
    if OUTPUT not in config or not (config.get(WEIGHT) or config.get(OUTPUT)):
        return None
    if COUNT in config and config.get(DENSE) is not False:
        return None
    what = f"needs {COUNT}, which its configuration has not" if COUNT not in config else "finds no experts"
    return f"TRL adds the loss of its routers, for which it {what}, and stops in the first step"


def _text_config(files: ModelFiles) -> Config:
    """``get_text_config()`` of transformers."""
    config = Config(files.config)
    return config.section("text_config") if "text_config" in config or "text_config" in config.names() else config
