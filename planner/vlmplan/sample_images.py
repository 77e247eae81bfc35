"""What the images of one sample become: patches for the vision encoder, tokens of the language model."""

from vlmplan.architecture.images import IMAGE_MODEL_TYPES, ImageShape, image_shape
from vlmplan.errors import InputError
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.workload import Workload


def sample_image(workload: Workload) -> ImageShape | None:
    """What one image of the workload becomes; None for samples without images.

    Raises InputError if the model takes no images or they do not fit in the sequence.
    """
    if not workload.images_per_sample:
        return None
    model = workload.model
    layout = model.layout if isinstance(model, ProbedModelFiles) else None
    if layout is not None or model.model_type not in IMAGE_MODEL_TYPES:
        sees = layout is not None and layout.vision
        why = f"vlmplan does not describe how {model.id} sees" if sees else f"{model.id} takes no images"
        raise InputError(f"--images-per-sample is {workload.images_per_sample}, but {why}")
    image = _one_image(workload)
    needed = image.num_tokens * workload.images_per_sample
    if needed > workload.seq_len:
        raise InputError(
            f"--seq-len is {workload.seq_len}, but {workload.images_per_sample} image(s) of "
            f"{workload.image_width}x{workload.image_height} take {needed} tokens of {model.id}; "
            f"give at least that many tokens, or smaller or fewer images"
        )
    return image


def image_tokens(workload: Workload) -> int:
    """Tokens that the images of one sample take in the language model; 0 where the model is not known to see."""
    if not workload.images_per_sample or workload.model.model_type not in IMAGE_MODEL_TYPES:
        return 0
    return _one_image(workload).num_tokens * workload.images_per_sample


def _one_image(workload: Workload) -> ImageShape:
    return image_shape(
        workload.model.config,
        workload.model.preprocessor,
        width=workload.image_width,
        height=workload.image_height,
        num_images_per_sample=workload.images_per_sample,
    )
