"""axolotl's preferences and rewards: what its own trainers can do with a recipe, and what is planned of it."""

from vlmplan.recipe.reference_adapters import copies_adapters
from vlmplan.recipe.task_choices import Reference, TaskTrainer
from vlmplan.rules.base import RuleBook, RuleContext
from vlmplan.rules.own_losses import wrong_loss

AXOLOTL_RULES = RuleBook()


@AXOLOTL_RULES.error(
    "axolotl 0.19.0 monkeypatch/trainer/utils.py selective_log_softmax, in TRL 1.9's dpo and grpo_trainer.py"
)
def axolotl_has_one_loss_of_each_task(context: RuleContext) -> str | None:
    return wrong_loss(context, TaskTrainer.AXOLOTL)


@AXOLOTL_RULES.error("axolotl 0.19.0 train.py setup_reference_model: without adapters a second model is always loaded")
def axolotl_computes_without_a_second_model_with_adapters_alone(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.is_of_axolotl or recipe.trains_adapters:
        return None
    if task.reference is not Reference.PRECOMPUTED:
        return None
    return (
        "--reference precomputed: axolotl holds a second model without adapters all the same, which is not planned; "
        "give copy"
    )


@AXOLOTL_RULES.error("trl 1.9 grpo_trainer.py: add_adapter('ref') of a model with adapters, which axolotl gives it")
def axolotl_copies_no_adapters_in_shards(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.is_of_axolotl or not copies_adapters(recipe) or recipe.zero_stage != 3:
        return None
    return (
        "--zero-stage 3 with adapters and a reference: axolotl adds a copy of the adapters, which is not planned in "
        "shards; give --zero-stage 2, or --reference none"
    )


@AXOLOTL_RULES.error("axolotl 0.19.0 train.py setup_reference_model, core/builders/rl.py; trl 1.9 kto_trainer.py")
def axolotl_trains_on_labels_with_adapters_alone(context: RuleContext) -> str | None:
    recipe, task = context.recipe, context.recipe.task
    if task is None or not task.is_of_axolotl or not task.is_kto or recipe.trains_adapters:
        return None
    return (
        "--task kto with --task-trainer axolotl and --method full: axolotl loads a second model that nothing uses, and "
        "TRL a third in float32, which is not planned; give --method lora"
    )
