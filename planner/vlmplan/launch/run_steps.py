"""The optimizer steps that the bundled trainer does on the samples of a plan."""

import math

from vlmplan.plan import Plan
from vlmplan.recipe.choices import Batching
from vlmplan.recipe.task import TrainingTask
from vlmplan.run.training import TrainerOptions


def planned_run_steps(plan: Plan, options: TrainerOptions) -> int:
    """Of a run that leaves out none of the plan's samples."""
    num_steps = whole_run_steps(plan)
    return num_steps if options.max_steps is None else min(num_steps, options.max_steps)


def whole_run_steps(plan: Plan) -> int:
    """The same over all epochs. How many rows packing makes of the samples is not known before their lengths are: there
    it is what is expected of the whole."""
    task = plan.recipe.task
    if plan.recipe.batching is Batching.PACKED:
        return plan.expected.num_steps
    if task is not None:
        return task_steps(plan, task, plan.workload.num_samples)
    steps_per_epoch = plan.workload.num_samples // plan.samples_per_step
    return sft_steps(plan, steps_per_epoch * plan.recipe.grad_accum)


def sft_steps(plan: Plan, micro_batches: int) -> int:
    """Of so many micro batches of a rank, in whole steps; what fills none waits for another epoch."""
    return max(1, round(plan.workload.epochs * micro_batches / plan.recipe.grad_accum))


def task_steps(plan: Plan, task: TrainingTask, num_rows: int) -> int:
    """Over ``num_rows`` rows of data."""
    return max(1, math.ceil(plan.workload.epochs * task_steps_per_epoch(plan, task, num_rows)))


def task_steps_per_epoch(plan: Plan, task: TrainingTask, num_rows: int) -> int:
    """As TRL's samplers have it: DPO leaves out what fills no micro batch on every rank, GRPO what fills no generation
    (``RepeatSampler`` in ``trl/trainer/utils.py``). What is left of an epoch's micro batches is a step of its own
    (``Trainer.set_initial_training_values`` in transformers 5.23).
    """
    recipe = plan.recipe
    at_once = prompts_at_once(plan, task) if task.is_grpo else recipe.micro_batch * plan.hardware.num_gpus
    micro_batches = num_rows // at_once * (recipe.micro_batches_per_generation if task.is_grpo else 1)
    return max(1, -(-micro_batches // recipe.grad_accum))


def prompts_at_once(plan: Plan, task: TrainingTask) -> int:
    """Prompts whose answers are generated together, over all ranks: ``generation_batch_size`` by
    ``num_generations``."""
    answers = plan.recipe.micro_batch * plan.recipe.micro_batches_at_once * plan.hardware.num_gpus
    return answers // task.num_generations
