"""What the bundled trainer does not do of tasks through TRL, whatever a run is asked for beside its plan."""

from collections.abc import Iterator

from vlmplan.plan.unlaunched import recipe_problems
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision
from vlmplan.recipe.evaluation import OF_BEST, OPTION_NAMES
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, TaskTrainer


def setup_problems(recipe: Recipe, task: TrainingTask, num_gpus: int) -> Iterator[str]:
    """Why the recipe's task cannot be run on so many GPUs with any options; sentences."""
    if task.trainer is not TaskTrainer.TRL:
        name = task.trainer.value
        yield f"--task-trainer {name} is planned, not launched: start {name}'s own script, which plans are read from"
        return
    yield from _recipe_problems(recipe, task)
    if task.is_grpo:
        yield from _grpo_problems(recipe, task, num_gpus)


def _recipe_problems(recipe: Recipe, task: TrainingTask) -> Iterator[str]:
    name = f"--task {task.kind.value}"
    if task.reentrant_checkpoints:
        yield "--reentrant-checkpoints is planned for TRL's own script; launch checkpoints without it: leave it off"
    yield from recipe_problems(recipe)
    if recipe.precision is Precision.FP16 and recipe.zero_stage == 0:
        yield (
            f"--precision fp16 does not go with --zero-stage 0 and {name}: DeepSpeed does not scale the loss there; "
            f"give --precision bf16, or --zero-stage 1"
        )

    if recipe.changes_base and recipe.zero_stage == 3 and not task.is_reward:
        yield (
            f"--lora-init {recipe.lora_init} does not go with --zero-stage 3 and {name}: TRL copies adapters that "
            f"change the model, for the reference, and copies nothing of sharded ones; give --lora-init default"
        )


def _grpo_problems(recipe: Recipe, task: TrainingTask, num_gpus: int) -> Iterator[str]:
    if task.generation is not Generation.TRANSFORMERS:
        yield f"--generation {task.generation.value} is planned, not launched; launch with --generation transformers"
    if task.reward_params:
        yield "--reward-model-parameters are planned, not launched; launch scores answers by the functions of --rewards"
    evaluation = recipe.evaluation
    if evaluation is not None and evaluation.keeps_best:
        name = next(name for name in OF_BEST if getattr(evaluation, name))
        yield f"{OPTION_NAMES[name]} goes by the loss, which says nothing of the rewards of --task grpo; leave it off"
    micro_batches = task.steps_per_generation or recipe.grad_accum
    answers = recipe.micro_batch * num_gpus * micro_batches
    if answers % task.num_generations:
        yield (
            f"--num-generations {task.num_generations} does not divide the {answers} answers that are generated at "
            f"once (--micro-batch {recipe.micro_batch}, {num_gpus} GPUs, {micro_batches} micro "
            f"batches)"
        )
