"""DPO and GRPO as the bundled trainer runs them, through TRL: what each needs, and what it cannot do.

What no trainer of TRL's can do with a recipe is among the rules (``rules/tasks.py``); here is what this one does not
do, and what the user has to bring.
"""

from collections.abc import Iterator

from vlmplan.plan import Plan
from vlmplan.recipe import Recipe
from vlmplan.recipe_choices import Precision
from vlmplan.training import TrainerOptions, flag
from vlmplan.training_task import SFT, Generation, Reference, TrainingTask

DPO_BETA, GRPO_BETA = 0.1, 0.04
"""How much the reference counts where nothing else is said: ``DPOConfig.beta``; in GRPO with a reference that of
DeepSeekMath (arXiv 2402.03300, section 4.2), as ``GRPOConfig``'s is 0, which means none."""
OF_SFT = ("dummy_data", "eval_data", "monitor", "group_by_length", "merge_adapters", "adapter")
"""Options that only supervised fine-tuning has."""
OF_TASKS = ("rewards", "beta")
"""Options that only the others have."""


def beta_of(recipe: Recipe, given: float | None) -> float:
    """How much the reference counts in the loss."""
    task = recipe.task
    if task is None or recipe.reference is Reference.NONE:
        return 0.0
    return given if given is not None else DPO_BETA if task.is_dpo else GRPO_BETA


def task_problems(plan: Plan, options: TrainerOptions) -> Iterator[str]:
    """Why the plan's task cannot be run with these options; sentences."""
    task = plan.recipe.task
    if task is None:
        for name in OF_TASKS:
            if getattr(options, name) is not None:
                yield f"{flag(name)} goes with --task grpo{' or dpo' if name == 'beta' else ''}, but --task is {SFT}"
        return
    for name in OF_SFT:
        if getattr(options, name) not in (None, (), False):
            yield f"{flag(name)} is for --task {SFT}, but --task is {task.kind.value}; leave it off"
    yield from _recipe_problems(plan.recipe, task)
    yield from _beta_problems(plan.recipe, task, options)
    if task.is_grpo:
        yield from _grpo_problems(plan, task, options)


def _recipe_problems(recipe: Recipe, task: TrainingTask) -> Iterator[str]:
    name = f"--task {task.kind.value}"
    if recipe.liger_layers:
        yield f"--liger-layers is planned for other trainers, which put Liger's kernels in; leave it off with {name}"
    if recipe.precision is Precision.FP16 and recipe.zero_stage == 0:
        yield (
            f"--precision fp16 does not go with --zero-stage 0 and {name}: DeepSpeed does not scale the loss there; "
            f"give --precision bf16, or --zero-stage 1"
        )

    if recipe.changes_base and recipe.zero_stage == 3:
        yield (
            f"--lora-init {recipe.lora_init} does not go with --zero-stage 3 and {name}: TRL copies adapters that "
            f"change the model, for the reference, and copies nothing of sharded ones; give --lora-init default"
        )


def _beta_problems(recipe: Recipe, task: TrainingTask, options: TrainerOptions) -> Iterator[str]:
    if options.beta is None:
        return
    if recipe.reference is Reference.NONE and options.beta:
        yield f"--beta is {options.beta:g}, but the plan has no reference; plan with --reference copy or adapter-off"
    if task.is_grpo and recipe.reference is not Reference.NONE and not options.beta:
        yield f"--beta is 0, but the plan has a reference ({recipe.reference.value}); plan with --reference none"


def _grpo_problems(plan: Plan, task: TrainingTask, options: TrainerOptions) -> Iterator[str]:
    if options.rewards is None:
        yield "--task grpo needs --rewards FILE: a Python file of yours whose functions score answers"
    elif not options.rewards.is_file():
        yield f"--rewards {options.rewards} is no file; a Python file with reward functions is needed"
    if task.generation is not Generation.TRANSFORMERS:
        yield f"--generation {task.generation.value} is planned, not launched; launch with --generation transformers"
    if task.reward_params:
        yield "--reward-model-parameters are planned, not launched; launch scores answers by the functions of --rewards"
    micro_batches = task.steps_per_generation or plan.recipe.grad_accum
    answers = plan.recipe.micro_batch * plan.hardware.num_gpus * micro_batches
    if answers % task.num_generations:
        yield (
            f"--num-generations {task.num_generations} does not divide the {answers} answers that are generated at "
            f"once (--micro-batch {plan.recipe.micro_batch}, {plan.hardware.num_gpus} GPUs, {micro_batches} micro "
            f"batches)"
        )
