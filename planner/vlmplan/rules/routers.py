"""The loss by which TRL's trainers keep a model's experts evenly used, and the models with which it stops them."""

from vlmplan.architecture.config import Config
from vlmplan.notes import listed
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
    reason = uncounted_experts(model.files, weight=None if task.router_loss else 0.0)
    if reason is None:
        return None
    ways = [f"--no-router-loss ({WEIGHT}: 0.0)"] if task.router_loss else []
    ways += [f'"{OUTPUT}": false in its config.json'] if _text_config(model.files).get(OUTPUT) else []
    turns = "turn" if len(ways) > 1 else "turns"
    return f"--task {task.kind.value} with {model.id}: {reason}; {listed(ways)} {turns} that loss off"


@ROUTER_RULES.error("trl 1.16 dpo_trainer.py, kto_trainer.py, grpo_trainer.py: hasattr(text_config, OUTPUT)")
def a_loss_of_routers_is_left_out_where_there_is_one(context: RuleContext) -> str | None:
    task, model = context.recipe.task, context.model
    if task is None or task.router_loss:
        return None
    if task.trainer is not TaskTrainer.TRL:
        return f"--no-router-loss is TRL's, but --task-trainer is {task.trainer.value}; leave it off"
    if model is None or model.files is None or has_loss_of_routers(model.files):
        return None
    return f"--no-router-loss is of models whose routers have a loss, and those of {model.id} have none; leave it off"


def has_loss_of_routers(files: ModelFiles) -> bool:
    """Whether TRL takes the model for one whose routers have a loss."""
    return OUTPUT in _text_config(files)


def uncounted_experts(files: ModelFiles, *, weight: float | None = None) -> str | None:
    """Why TRL's fused head stops with a model whose routers have a loss, as a sentence; None where it does not.
    ``weight`` of that loss, None: as its configuration has it."""
    config = _text_config(files)
    if OUTPUT not in config or not ((config.get(WEIGHT) if weight is None else weight) or config.get(OUTPUT)):
        return None
    if COUNT in config and config.get(DENSE) is not False:
        return None
    what = f"needs {COUNT}, which its configuration has not" if COUNT not in config else "finds no experts"
    return f"TRL adds the loss of its routers, for which it {what}, and stops in the first step"


def _text_config(files: ModelFiles) -> Config:
    """``get_text_config()`` of transformers."""
    config = Config(files.config)
    return config.section("text_config") if "text_config" in config or "text_config" in config.names() else config
