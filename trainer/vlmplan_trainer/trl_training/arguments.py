"""A plan as the keyword arguments of TRL's configurations of its tasks, without importing TRL.

Names and meanings are those of TRL 1.16 (``trl/trainer/dpo_config.py``, ``kto_config.py``, ``grpo_config.py``) and of
transformers 5.23's ``TrainingArguments``. What is not here has its default there. The plan's own recipe is what
decides: the model comes with its checkpoints of activations switched on (``gradient_checkpointing`` would switch on
others), the optimizer and the schedule are made here, and checkpoints are published here.
"""

from pathlib import Path
from typing import Any

from vlmplan.launch.task_runs import beta_of
from vlmplan.plan import Plan
from vlmplan.recipe.choices import Precision
from vlmplan.recipe.dropout import switches_dropout_off
from vlmplan.recipe.lora_targets import INDEXING_TYPES
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import KTO_LOSSES, Reference, TaskKind
from vlmplan.run.training import LEARNING_RATES, TrainerOptions


def trl_arguments(
    plan: Plan, options: TrainerOptions, task: TrainingTask, *, num_steps: int, folder: Path, is_vision: bool
) -> dict[str, Any]:
    """Keyword arguments of the task's configuration. ``folder``: where the trainer may write."""
    kinds = {TaskKind.DPO: _of_dpo, TaskKind.REWARD: _of_reward, TaskKind.KTO: _of_kto, TaskKind.GRPO: _of_grpo}
    shared = _shared(plan, options, num_steps=num_steps, folder=folder, is_vision=is_vision)
    return shared | kinds[task.kind](plan, options, task)


def _shared(plan: Plan, options: TrainerOptions, *, num_steps: int, folder: Path, is_vision: bool) -> dict[str, Any]:
    recipe = plan.recipe
    is_on_cpu = plan.hardware.vendor == "cpu"
    computes_so = recipe.uses_deepspeed or recipe.uses_autocast
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.grad_accum,
        "max_steps": num_steps,
        "learning_rate": peak_rate(plan, options),
        "weight_decay": options.weight_decay,
        "max_grad_norm": recipe.gradient_clipping,
        "seed": options.seed,
        "bf16": recipe.precision is Precision.BF16 and computes_so,
        "fp16": recipe.precision is Precision.FP16 and computes_so,
        "deepspeed": None if plan.ds_config is None else dict(plan.ds_config),
        "use_cpu": is_on_cpu,
        "ddp_backend": "gloo" if is_on_cpu and plan.has_ranks else None,
        # Of images and text a micro batch may have no image, which TRL sees to where this is None. Of text every weight
        # has a gradient, but for those of indexers.
        "ddp_find_unused_parameters": None if is_vision else plan.workload.model.model_type in INDEXING_TYPES,
        "gradient_checkpointing": False,
        "dataloader_drop_last": True,
        "remove_unused_columns": False,
        "save_strategy": "no",
        "eval_strategy": "no",  # the callback says when, but for the first
        "eval_on_start": options.eval_data is not None and recipe.evaluation is not None and recipe.evaluation.on_start,
        "per_device_eval_batch_size": recipe.eval_batch,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }


def peak_rate(plan: Plan, options: TrainerOptions) -> float:
    """The highest learning rate of the schedule."""
    rate = options.learning_rate
    return LEARNING_RATES[plan.recipe.method.value] if rate is None else rate


def _of_dpo(plan: Plan, options: TrainerOptions, task: TrainingTask) -> dict[str, Any]:
    return {
        "beta": beta_of(plan.recipe, options.beta),
        "max_length": plan.workload.seq_len,
        "precompute_ref_log_probs": plan.recipe.reference is Reference.PRECOMPUTED,
        "disable_dropout": switches_dropout_off(plan.recipe),
        **_of_routers(task),
    }


def _of_routers(task: TrainingTask) -> dict[str, Any]:
    return {} if task.router_loss else {"router_aux_loss_coef": 0.0}


def _of_kto(plan: Plan, options: TrainerOptions, task: TrainingTask) -> dict[str, Any]:
    weights = {name: getattr(options, name) for name in ("desirable_weight", "undesirable_weight")}
    return {
        **_of_dpo(plan, options, task),
        "loss_type": KTO_LOSSES[task.kto_loss],
        **{name: weight for name, weight in weights.items() if weight is not None},
    }


def _of_reward(plan: Plan, options: TrainerOptions, task: TrainingTask) -> dict[str, Any]:
    return {
        "max_length": plan.workload.seq_len,
        "center_rewards_coefficient": options.center_rewards_coefficient,
        "disable_dropout": switches_dropout_off(plan.recipe),
    }


def _of_grpo(plan: Plan, options: TrainerOptions, task: TrainingTask) -> dict[str, Any]:
    return {
        "beta": beta_of(plan.recipe, options.beta),
        "temperature": options.temperature,
        "num_generations": task.num_generations,
        "num_generations_eval": plan.recipe.eval_generations,
        "max_completion_length": task.answer_tokens(plan.workload.seq_len),
        "steps_per_generation": plan.recipe.micro_batches_at_once,
        "num_iterations": task.num_iterations,
        # config.json of OLMo 3, SmolVLM 2 and others says false, as they were trained: without a generation_config.json
        # that says otherwise each new token would run all of them again.
        "generation_kwargs": {"use_cache": True},
        "disable_dropout": switches_dropout_off(plan.recipe),
        **_of_routers(task),
    }
