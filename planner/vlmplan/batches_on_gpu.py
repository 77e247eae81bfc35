"""When the micro batches of an optimizer step come to the GPU, and as what."""

from vlmplan.units import Choice


class BatchesOnGpu(Choice):
    """Which micro batches of an optimizer step are on the GPU, and in which type their pixels came there."""

    TURN = "turn"
    """Each while it is its turn; the bundled trainer casts pixels before it sends them."""
    STEP = "step"
    """All of them from the step's beginning to its end, pixels in the type that is computed in (LLaMA-Factory)."""
    STEP_FLOAT32 = "step-float32"
    """The same, pixels in float32 as processors make them: Hugging Face's Trainer. ``get_batch_samples`` takes all
    micro batches of a step from accelerate's loader, which has moved them (transformers 5.23 ``trainer.py``,
    accelerate 1.15 ``data_loader.py``)."""
