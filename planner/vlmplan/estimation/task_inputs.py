"""What stops TRL's trainers for what they hand on to a model, and for what they do not.

Where samples of GRPO have images (trl 1.16 ``trainer/grpo_trainer.py``), all that a processor makes but ids and mask
goes to ``generate``, and to ``_get_per_token_logps_and_entropies(**forward_kwargs)`` for old log-probabilities and a
reference, which takes pixel_values, image_grid_thw, pixel_attention_mask, spatial_shapes, image_sizes,
image_position_ids and types of tokens: another name is a TypeError. Without those two the forward that trains gets
these names alone, so that the model lacks the others.

Molmo 2 asks for types of tokens (``mm_token_type_ids``) whenever it is in training mode, as it is while TRL generates.
``prepare_inputs_for_generation`` of transformers 5.23 gives it those of the prompt, and none with the tokens behind
it: ``generate`` ends in a ValueError at the second token, as rehearsed. TRL makes none of text, so that text alone
ends in the first forward of every task.
"""

from collections.abc import Mapping

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import TaskTrainer
from vlmplan.workload import Workload

NAMES_OF_ITS_OWN: Mapping[str, str] = {
    "aria": "pixel_mask",
    "deepseek_ocr2": "num_local_patches",
    "deepseek_vl_hybrid": "high_res_pixel_values",
    **dict.fromkeys(("minicpm_ocr", "minicpmv4_6", "minicpmv4_7"), "target_sizes"),
    "mllama": "aspect_ratio_ids",
    "phi4_multimodal": "image_pixel_values",
    "video_llama_3": "image_merge_sizes",
}
"""A name that the processor of a type gives to a part of its images (``model_input_names`` of its image processor in
transformers 5.23)."""
TYPED_TOKENS = ("molmo2",)
"""Types of models that are not trained without types of tokens."""


def refuse_task_inputs(workload: Workload, recipe: Recipe) -> None:
    """Raise InputError where TRL's trainer of the task would stop at a name that it does not know, or the model at one
    that it does not get."""
    task, model = recipe.task, workload.model
    if task is None or task.trainer is not TaskTrainer.TRL:
        return
    model_type, has_images = str(model.config.get("model_type", "")), workload.images_per_sample > 0
    if model_type in TYPED_TOKENS and (task.is_grpo or not has_images):
        of, behind = ("", "behind a prompt") if has_images else ("text alone of ", "for text alone")
        raise InputError(
            f"--task {task.kind.value} does not go with {of}{model.id}: in training mode its model asks for "
            f"mm_token_type_ids, which TRL's trainer does not give {behind}; give --task dpo or kto with images, or "
            f"--task sft"
        )
    name = NAMES_OF_ITS_OWN.get(model_type) if task.is_grpo and has_images else None
    if name is not None:
        raise InputError(
            f"--task grpo does not go with images of {model.id}: its processor makes {name}, which TRL's GRPOTrainer "
            f"does not take; give --images-per-sample 0, or --task dpo"
        )
