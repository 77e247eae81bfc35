"""References of preferences and rewards: which a task, its trainer and its engine can have."""

from vlmplan.recipe.task_choices import Reference, TaskTrainer
from vlmplan.rules.base import RuleBook, RuleContext

REFERENCE_RULES = RuleBook()


@REFERENCE_RULES.error(
    "trl 1.16 dpo_trainer.py: is_peft_model decides; a model without adapters has none to switch off"
)
def only_adapters_can_be_off(context: RuleContext) -> str | None:
    recipe = context.recipe
    if not recipe.reference.is_trained_model or recipe.trains_adapters:
        return None
    return f"--reference {recipe.reference.value} needs adapters, but --method is full; give copy, or --method lora"


@REFERENCE_RULES.error(
    "trl 1.16 dpo_trainer.py, kto_trainer.py, grpo_trainer.py: 'create a \"ref\" adapter', which TRL alone has"
)
def trl_alone_copies_adapters(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or context.recipe.reference is not Reference.ADAPTER_COPY or task.trainer is TaskTrainer.TRL:
        return None
    return f"--reference adapter-copy is TRL's, but --task-trainer is {task.trainer.value}; give adapter-off"


@REFERENCE_RULES.error("trl 1.16 dpo_trainer.py: ref_param.data.copy_(param.data), where both are empty under stage 3")
def sharded_adapters_are_not_copied(context: RuleContext) -> str | None:
    recipe = context.recipe
    if recipe.reference is not Reference.ADAPTER_COPY or recipe.zero_stage != 3:
        return None
    return (
        "--reference adapter-copy, which launch --adapter means, does not go with --zero-stage 3: TRL copies nothing "
        "of sharded adapters; give --zero-stage 2, or --reference adapter-off, the model without adapters"
    )


@REFERENCE_RULES.error(
    "trl 1.16 grpo_trainer.py: with adapters there is no second model ('adapter off', or a ref adapter)"
)
def adapters_need_no_copy(context: RuleContext) -> str | None:
    recipe = context.recipe
    is_of_openrlhf = recipe.task is not None and recipe.task.is_of_openrlhf
    if recipe.reference is not Reference.COPY or not recipe.trains_adapters or is_of_openrlhf:
        return None
    return (
        f"--reference copy: with --method {recipe.method.value} TRL has no second model but switches adapters off; "
        f"give adapter-off"
    )


@REFERENCE_RULES.error("trl 1.16 dpo_trainer.py, kto_trainer.py compute_loss: every loss reads the reference")
def preferences_need_a_reference(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or not task.reads_reference or task.reference is not Reference.NONE:
        return None
    if task.is_dpo and (task.is_of_llama_factory or task.is_of_axolotl or task.is_of_ms_swift):  # which have ORPO
        return None
    return (
        "--reference none is for --task grpo, whose beta may be 0; the loss of DPO and KTO reads one: give "
        "precomputed, copy or adapter-off"
    )


@REFERENCE_RULES.error(
    "LLaMA-Factory 0.9.5 train/dpo/trainer.py, ms-swift 4.6.0 rlhf_trainers/dpo_trainer.py: it is False"
)
def other_trainers_compute_while_they_train(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or task.reference is not Reference.PRECOMPUTED:
        return None
    if task.is_of_ms_swift or (task.is_of_axolotl and task.is_kto):
        name = f"--task {task.kind.value} with --task-trainer {task.trainer.value}"
        return f"--reference precomputed is not had by {name}; give copy or adapter-off"
    if not task.is_of_llama_factory:
        return None
    others = ", adapter-off, or none for a loss without a reference (orpo, simpo)" if task.is_dpo else " or adapter-off"
    return f"--reference precomputed is not had by --task-trainer llamafactory; give copy{others}"


@REFERENCE_RULES.error("trl 1.16 grpo_config.py: there is no precompute_ref_log_probs, as answers come while it trains")
def generated_answers_are_not_known_before(context: RuleContext) -> str | None:
    task = context.recipe.task
    if task is None or not task.is_grpo or task.reference is not Reference.PRECOMPUTED:
        return None
    return (
        "--reference precomputed is for --task dpo: the answers of GRPO are generated while it trains; give none, copy "
        "or adapter-off"
    )
