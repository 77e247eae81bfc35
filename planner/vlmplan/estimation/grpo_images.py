"""What stops TRL's GRPOTrainer where samples have images: what a processor makes of them is handed on by name.

All but ids and mask goes to ``_get_per_token_logps_and_entropies(**forward_kwargs)`` (trl 1.16
``trainer/grpo_trainer.py``), which takes pixel_values, image_grid_thw, pixel_attention_mask, spatial_shapes,
image_sizes, image_position_ids and types of tokens: another name is a TypeError.
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
    "molmo2": "image_token_pooling",
    "phi4_multimodal": "image_pixel_values",
    "video_llama_3": "image_merge_sizes",
}
"""A name that the processor of a type gives to a part of its images (``model_input_names`` of its image processor in
transformers 5.23)."""


def refuse_grpo_images(workload: Workload, recipe: Recipe) -> None:
    """Raise InputError where TRL's GRPOTrainer would stop at a name that it does not know."""
    task = recipe.task
    if task is None or not task.is_grpo or task.trainer is not TaskTrainer.TRL or not workload.images_per_sample:
        return
    name = NAMES_OF_ITS_OWN.get(str(workload.model.config.get("model_type", "")))
    if name is not None:
        raise InputError(
            f"--task grpo does not go with images of {workload.model.id}: its processor makes {name}, which TRL's "
            f"GRPOTrainer does not take; give --images-per-sample 0, or --task dpo"
        )
