"""Whether ranks wait for each other for ever: one runs a vision encoder that another, without images, does not.

Under ZeRO-3 and FSDP2 a module's weights are gathered from all ranks as it is called (DeepSpeed issue 7170, Qwen3-VL
issue 126). vlmplan's own trainer and LLaMA-Factory give a micro batch without images a blank one, TRL 1.16
(``images = None`` in ``trainer/sft_trainer.py``), axolotl 0.19 (``utils/collators/mm_chat.py``) and scripts around
transformers' Trainer do not.
"""

from vlmplan.data_plan.source import DataSource
from vlmplan.estimation import Estimate

WITHOUT_BLANKS = ("TRL", "trl", "Hugging Face Trainer", "transformers", "axolotl")
"""How names of trainers begin that add no blank image; of ms-swift it depends on the model."""


def hang_of(found: Estimate, source: DataSource) -> str | None:
    """The sentence that the run may hang on these samples; None where it does not."""
    recipe, shapes = found.recipe, source.trained.samples.shapes
    without = sum(not shape.num_images for shape in shapes)
    is_mixed = 0 < without < len(shapes) and found.cluster.num_gpus > 1
    if not is_mixed or not source.rules.trainer.startswith(WITHOUT_BLANKS):
        return None
    if recipe.zero_stage != 3 and not recipe.fsdp:
        return None
    engine = "FSDP2" if recipe.fsdp else "ZeRO-3"
    return (
        f"{without:,} of {len(shapes):,} samples have no image: a rank whose micro batch has none does not call the "
        f"vision encoder, whose weights the others wait for under {engine}, so that the run hangs; give every sample "
        f"an image, if a blank one, or keep weights whole (ZeRO-2)"
    )
