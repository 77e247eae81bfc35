"""A micro batch as the model's processor makes it of white images, where nothing here says what that makes."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from vlmplan_trainer.labels import DECODER_INPUTS, IGNORED_LABEL, TARGET_LABELS
from vlmplan_trainer.probe import model_class
from vlmplan_trainer.processors.image_encoder import processed_alone
from vlmplan_trainer.processors.processing import image_token_of, processed
from vlmplan_trainer.rehearse.rows import answers, laid_out
from vlmplan_trainer.rehearse.samples import MicroBatch, Samples


def as_processed(config: Any, samples: Samples, preprocessor: Mapping[str, Any] | None) -> MicroBatch:
    """What the model's processor makes of white images, as far as the model's forward names it."""
    made = processed(
        config,
        preprocessor,
        width=samples.width,
        height=samples.height,
        images_per_sample=samples.images_per_sample,
        num_samples=samples.micro_batch,
        num_tokens=samples.num_tokens,
    )
    names = {*inspect.signature(model_class(config).forward).parameters, "attention_mask"}
    tensors = {name: value for name, value in made.tensors.items() if name in names}
    if samples.target_tokens:
        tensors["attention_mask"][0, -1] = 0  # as ``rows.pairs``
        return _split(tensors | answers(samples.micro_batch, samples.target_tokens))
    labels = tensors["input_ids"].clone()
    labels[:, : labels.shape[1] // 2] = IGNORED_LABEL
    token = image_token_of(config)
    if token is not None:
        labels[tensors["input_ids"] == token] = IGNORED_LABEL
    made_of = _split(tensors)
    return MicroBatch(laid_out(made_of.values | {"labels": labels}, samples.sequences), made_of.shapes)


def for_image_encoder(config: Any, samples: Samples, preprocessor: Mapping[str, Any] | None) -> MicroBatch:
    """White images as their processor makes them, and answers as the decoder is given and as it is to write them."""
    size = {"width": samples.width, "height": samples.height}
    made = processed_alone(config, preprocessor, **size, num_samples=samples.micro_batch)
    written = answers(samples.micro_batch, samples.target_tokens)
    return _split(made.tensors | {DECODER_INPUTS: written[TARGET_LABELS].clone()} | written)


def _split(tensors: Mapping[str, torch.Tensor]) -> MicroBatch:
    values = {name: value for name, value in tensors.items() if not value.is_floating_point()}
    shapes = {name: tuple(value.shape) for name, value in tensors.items() if value.is_floating_point()}
    return MicroBatch(values, shapes)
