"""What of a run is replayed through the caching allocator: whether it is, how many steps, and which micro batches."""

from vlmplan.architecture.storage_log import Operations
from vlmplan.architecture.trace import Trace
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import TaskTrainer

NUM_STEPS = 3
"""The first makes the states, the second finds other places beside them, and the third those that the second has left.
Three more reserve no more in any recorded rehearsal."""

MicroBatch = tuple[Trace, Operations]
"""A trace of a ``LoggingTape`` and its expansion."""


def is_replayed(recipe: Recipe) -> bool:
    """Whether a replay tells what torch cannot do without: expandable segments give free pages back, so that tensors
    do."""
    return not recipe.expandable_segments and is_followed(recipe)


def is_followed(recipe: Recipe) -> bool:
    """Whether a replay tells what torch reserves. Answers are followed as TRL has them, between steps."""
    if recipe.task is None or not recipe.task.is_grpo:
        return True
    is_between_steps = recipe.micro_batches_per_generation % recipe.grad_accum == 0
    return recipe.task.trainer is TaskTrainer.TRL and is_between_steps


def num_replayed(recipe: Recipe) -> int:
    """Micro batches of a step that are replayed: the first, the last, and one for all between them."""
    return min(recipe.grad_accum, 3)


def alike(micro_batch: MicroBatch, recipe: Recipe) -> list[MicroBatch]:
    """The micro batches of a run in which all are like this one."""
    return [micro_batch] * (NUM_STEPS * num_replayed(recipe))
