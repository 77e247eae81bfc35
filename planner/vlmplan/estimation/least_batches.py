"""Micro batches that are too small for their task."""

from vlmplan.errors import InputError
from vlmplan.recipe.task import TrainingTask


def refuse_too_small(task: TrainingTask | None, micro_batch: int | None) -> None:
    """Raise InputError where KTO would find no answer to another prompt (TRL 1.16 ``kto_trainer.py``: "Actual (not
    effective) batch size must be > 1")."""
    if task is None or micro_batch is None or micro_batch >= task.least_micro_batch:
        return
    raise InputError(
        f"--micro-batch {micro_batch} does not go with --task {task.kind.value}, whose loss takes answers to other "
        f"prompts of the micro batch; give --micro-batch 2 or more, or --kto-loss apo-zero-unpaired"
    )


def refuse_lone_answer(task: TrainingTask | None, samples_per_step: int) -> None:
    """Raise InputError where ms-swift would find no answer to another prompt in a step (4.6.0
    ``pipelines/train/kto.py``: "Batch size is 1 (too small)")."""
    if task is None or not task.is_of_ms_swift or not task.estimates_kl or samples_per_step > 1:
        return
    raise InputError(
        "--task kto with --task-trainer ms-swift takes answers to other prompts from those of a step, which has one; "
        "give --micro-batch 2 or --grad-accum 2, or --kto-loss apo-zero-unpaired"
    )
