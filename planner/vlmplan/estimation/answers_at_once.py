"""How many of GRPO's answers are generated together, where those of a whole step take more memory than there is.

Answers that are generated together share what reading the weights takes, so that a search begins with those of a step.
"""

from dataclasses import replace
from math import gcd

from vlmplan.errors import InputError
from vlmplan.memory.phases import ROLLOUT_PHASES
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe
from vlmplan.recipe.task import TrainingTask
from vlmplan.units import divisors


def fewer_at_once(recipe: Recipe, num_gpus: int) -> int | None:
    """The next smaller number of micro batches whose answers are generated together (``steps_per_generation``): it
    divides those of a step and makes whole groups of answers. None where there is none."""
    task = recipe.task
    if task is None or not task.is_grpo or task.is_of_verl:
        return None
    present, answers = recipe.micro_batches_at_once, recipe.micro_batch * num_gpus
    fewer = (steps for steps in reversed(divisors(recipe.grad_accum)) if steps < present)
    return next((steps for steps in fewer if answers * steps % task.num_generations == 0), None)


def is_too_large_by_answers(recipe: Recipe, timeline: Timeline) -> bool:
    """Whether fewer answers at once lower the peak of ``timeline``: it is where they are generated, or vLLM takes what
    they need."""
    task = recipe.task
    if task is None or not task.is_grpo:
        return False
    return timeline.peak_phase.name in ROLLOUT_PHASES or (task.uses_vllm_here and task.vllm_memory is None)


def with_answers_of(recipe: Recipe, steps: int) -> Recipe:
    """``recipe`` with the answers of ``steps`` micro batches generated together."""
    assert recipe.task is not None
    return recipe.with_changes(task=replace(recipe.task, steps_per_generation=steps))


def whole_groups(task: TrainingTask | None, micro_batch: int, num_gpus: int) -> int:
    """The least accumulation with which the answers that are generated at once are whole groups."""
    if task is None or not task.is_grpo or task.steps_per_generation is not None:
        return 1
    at_once = micro_batch * num_gpus
    return task.num_generations // gcd(task.num_generations, at_once)


def refuse_parts_of_groups(recipe: Recipe, num_gpus: int) -> None:
    """Raise InputError where the answers that are generated at once, or evaluated, are not whole groups (TRL 1.16
    ``grpo_config.py``: "generation_batch_size must be divisible by num_generations")."""
    task = recipe.task
    if task is None or not task.is_grpo or task.is_of_verl:  # which generates for whole prompts
        return
    steps = recipe.micro_batches_at_once
    answers = recipe.micro_batch * num_gpus * steps
    if answers % task.num_generations:
        raise InputError(
            f"--num-generations {task.num_generations} does not divide the {answers} answers that are generated at "
            f"once: micro batch {recipe.micro_batch} x {steps} x {num_gpus} GPU(s); give a divisor, or another "
            f"--micro-batch, --grad-accum or --steps-per-generation"
        )
    if recipe.evaluation is not None and recipe.evaluation.batch * num_gpus % recipe.eval_generations:
        raise InputError(
            f"--eval-batch is {recipe.evaluation.batch}, on {num_gpus} GPU(s) {recipe.evaluation.batch * num_gpus} "
            f"answers, but {recipe.eval_generations} answer each prompt; give a multiple, or --eval-generations"
        )
