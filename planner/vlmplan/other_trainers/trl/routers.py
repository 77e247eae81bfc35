"""The loss of routers of experts in TRL's trainers but that of reward models: ``router_aux_loss_coef``."""

from collections.abc import Mapping

from vlmplan.other_trainers.record import Value
from vlmplan.other_trainers.settings import Settings
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.rules.routers import OUTPUT, WEIGHT, has_loss_of_routers, uncounted_experts
from vlmplan.workload import ModelFiles


def router_options(settings: Settings, model: ModelFiles | None, own: Mapping[str, Value]) -> dict[str, Value]:
    """What the key means beside ``own``, the options of a task. Of tasks a rule says whether TRL can count the model's
    experts where the configuration decides; ``SFTTrainer`` takes the key for what the configuration says itself."""
    if own.get("task") == TaskKind.REWARD.value:
        return {}
    weight = None if settings.value(WEIGHT) is None else settings.number(WEIGHT, 0.0)
    if model is None:
        return {}
    if not has_loss_of_routers(model):
        if weight:
            settings.refuse(WEIGHT, f"TRL takes it for models with {OUTPUT} in their configuration alone; leave it out")
        return {}
    is_task = "task" in own
    reason = uncounted_experts(model, weight=weight)
    if reason is not None and (weight is None or weight > 0) and not (is_task and weight is None):
        settings.refuse_whole(f"{model.id}: {reason}; {WEIGHT}: 0.0 turns that loss off")
    return {"router_loss": False} if is_task and weight == 0 else {}
