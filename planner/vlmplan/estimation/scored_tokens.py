"""The tokens of a row that a task scores: those of the answer."""

from vlmplan.architecture.images import ImageShape
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import Reference
from vlmplan.workload import Workload


def scored_tokens(recipe: Recipe, workload: Workload, image: ImageShape | None) -> int | None:
    """How many they are; None where samples are trained as they are, and where a row has one score. ``image`` is that
    of the workload's images.

    Raises InputError for an answer that leaves no room for the prompt and its images, and for a precomputed reference
    of images (TRL 1.16 ``dpo_trainer.py``, ``kto_trainer.py``: "not supported for vision datasets").
    """
    if recipe.task is None or recipe.task.is_reward:
        return None
    if recipe.task.reference is Reference.PRECOMPUTED and image is not None:
        raise InputError(
            "--reference precomputed is not for samples with images, which TRL reads anew every time; give copy or "
            "adapter-off"
        )
    prompt = 1 if image is None else max(1, image.num_tokens * workload.images_per_sample)
    return recipe.task.answer_tokens(workload.seq_len, least_prompt=prompt)
