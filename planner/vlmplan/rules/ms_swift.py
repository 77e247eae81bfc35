"""ms-swift's preferences and rewards: what its own trainers can do with a recipe, and what is planned of it."""

from vlmplan.recipe.task_choices import IdleOffload, TaskTrainer
from vlmplan.rules.base import RuleBook, RuleContext
from vlmplan.rules.own_losses import wrong_loss

MS_SWIFT_RULES = RuleBook()


@MS_SWIFT_RULES.error(
    "ms-swift 4.6.0 rlhf_trainers/dpo_trainer.py: selective_log_softmax of logits; grpo_trainer.py: of divided ones"
)
def ms_swift_has_one_loss(context: RuleContext) -> str | None:
    return wrong_loss(context, TaskTrainer.MS_SWIFT)


@MS_SWIFT_RULES.error("ms-swift 4.6.0 rlhf_trainers/grpo_trainer.py offload_context: around vLLM's answers alone")
def ms_swift_moves_weights_for_vllm_alone(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or not task.is_ms_swifts_grpo or task.idle_offload is IdleOffload.NONE:
        return None
    if task.uses_vllm_here:
        return None
    return (
        f"--idle-offload {task.idle_offload.value} is for --generation vllm with --task-trainer ms-swift, but it is "
        f"{task.generation.value}; leave it off"
    )
