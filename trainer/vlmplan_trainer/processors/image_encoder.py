"""What the image processor makes of images for an encoder that reads nothing else, without the checkpoint's tokenizer.

transformers has no processor for such models as a whole (Donut and TrOCR have one of their own each, the captioners of
ViT and GPT-2 none), so that the one of images is asked alone, as training does it.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from vlmplan.errors import InputError
from vlmplan.model_types.encoder_decoder import IMAGE_ENCODER_TYPES
from vlmplan_trainer.labels import DECODER_INPUTS
from vlmplan_trainer.probe import model_class
from vlmplan_trainer.processors.processing import Processed, image_processor_of


def encodes_images_alone(config: Any) -> bool:
    """Whether the encoder of transformers' configuration reads an image and no text."""
    return config.model_type in IMAGE_ENCODER_TYPES


def image_encoder_config(config: Any) -> Any:
    """The configuration of what reads the image."""
    return config.encoder if config.model_type == "vision-encoder-decoder" else config.vision_config


def processed_alone(
    config: Any,
    preprocessor: Mapping[str, Any] | None,
    *,
    width: int,
    height: int,
    num_samples: int,
    num_tokens: int | None = None,
) -> Processed:
    """The tensors of ``num_samples`` white images and of ``num_tokens`` of an answer to each; None: one.

    No token stands for an image. Raises InputError for images that the processor refuses.
    """
    from PIL import Image

    encoder = image_encoder_config(config)
    is_one = config.model_type == "vision-encoder-decoder"
    processor = image_processor_of(encoder if is_one else config, dict(preprocessor or {}), encoder)
    drawn = {"is_vqa": False} if hasattr(processor, "is_vqa") else {}  # a question above the image changes no size
    image = Image.new("RGB", (width, height), "white")
    try:
        made = processor(images=[image] * num_samples, return_tensors="pt", **drawn)
    except Exception as error:  # processors raise anything at all
        said = " ".join(str(error).split()).partition(". ")[0]
        raise InputError(f"{type(processor).__name__} refuses images of this size: {said}") from None
    names = set(inspect.signature(model_class(config).forward).parameters)
    tensors = {name: value for name, value in made.items() if isinstance(value, torch.Tensor) and name in names}
    return Processed(
        tensors=tensors | {DECODER_INPUTS: torch.zeros((num_samples, num_tokens or 1), dtype=torch.int64)},
        num_tokens=0,
        num_placeholders=0,
        token_inputs=[],
        class_name=type(processor).__name__,
    )
