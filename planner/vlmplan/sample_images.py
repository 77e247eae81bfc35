"""What the images of one sample become: patches for the vision encoder, tokens of the language model."""

from typing import TYPE_CHECKING

from vlmplan.architecture.images import IMAGE_MODEL_TYPES, ImageShape, image_shape
from vlmplan.architecture.images.videos import clip_shape
from vlmplan.errors import InputError
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.workload import Workload

if TYPE_CHECKING:
    from vlmplan.architecture.captured.capture import ImageCapture

ONE_IMAGE_TYPES = ("blip-2", "instructblip")
"""``Blip2Processor`` and ``InstructBlipProcessor`` write ``num_query_tokens`` tokens into a text, however many images
are beside it, and the Q-Former of InstructBLIP reads the text with one."""


def sample_image(workload: Workload) -> ImageShape | None:
    """What one image of the workload becomes; None for samples without images.

    Raises InputError if the model takes no images or they do not fit in the sequence.
    """
    if not workload.images_per_sample:
        return None
    model = workload.model
    if model.reads_text_alone:
        raise InputError(
            f"--images-per-sample is {workload.images_per_sample}, but {model.id} is planned and trained on prompts of "
            f"text; leave it off"
        )
    if model.model_type in ONE_IMAGE_TYPES and workload.images_per_sample > 1:
        raise InputError(
            f"--images-per-sample is {workload.images_per_sample}, but the processor of {model.id} writes the tokens "
            f"of one image into a sample; give 1"
        )
    image = _one_image(workload)
    needed = image_tokens(workload)
    if needed > workload.seq_len:
        raise InputError(
            f"--seq-len is {workload.seq_len}, but {workload.images_per_sample} {_kind(workload)} take {needed} tokens "
            f"of {model.id}; give at least that many tokens, or "
            f"{'smaller or fewer images' if workload.clip_frames is None else 'fewer frames'}"
        )
    return image


def _kind(workload: Workload) -> str:
    size = f"{workload.image_width}x{workload.image_height}"
    return f"image(s) of {size}" if workload.clip_frames is None else f"video(s) of {workload.clip_frames} frames"


def image_tokens(workload: Workload) -> int:
    """Tokens that the images of one sample take in the language model; 0 where the model is not known to see.

    Raises InputError for images that the processor refuses, or that were not captured of a model without a family.
    """
    if not workload.images_per_sample:
        return 0
    model = workload.model
    if isinstance(model, ProbedModelFiles):
        return 0 if model.images is None else _captured(workload, model.images).num_tokens
    if model.model_type not in IMAGE_MODEL_TYPES:
        return 0
    return _one_image(workload).num_tokens * workload.images_per_sample


def _one_image(workload: Workload) -> ImageShape:
    model = workload.model
    if isinstance(model, ProbedModelFiles) and model.images is not None:
        return _captured(workload, model.images).image
    if isinstance(model, ProbedModelFiles) or model.model_type not in IMAGE_MODEL_TYPES:
        from vlmplan.architecture.generic.layout import inputs_beside_text

        sees = isinstance(model, ProbedModelFiles) and "images" in inputs_beside_text(model.layout)
        why = f"vlmplan does not describe how {model.id} sees" if sees else f"{model.id} takes no images"
        raise InputError(f"--images-per-sample is {workload.images_per_sample}, but {why}")
    if workload.clip_frames is not None:
        size = workload.image_width, workload.image_height
        settings = model.preprocessor, model.video_settings
        return clip_shape(model.config, *settings, num_frames=workload.clip_frames, size=size)
    return image_shape(
        model.config,
        model.preprocessor,
        width=workload.image_width,
        height=workload.image_height,
        num_images_per_sample=workload.images_per_sample,
    )


def _captured(workload: Workload, images: "ImageCapture") -> "ImageCapture":
    """What was captured, where it is of the workload's images."""
    asked = (workload.image_width, workload.image_height, workload.images_per_sample)
    if asked != (images.width, images.height, images.images_per_sample):
        raise InputError(
            f"what {workload.model.id} does with {asked[2]} image(s) of {asked[0]}x{asked[1]} was not captured: "
            "estimate with them first"
        )
    return images
