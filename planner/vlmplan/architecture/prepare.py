"""A model tree made ready for a recipe: quantised, frozen, adapted, every weight with its element type.

The steps and their order are those of the trainer: load (quantised or not), freeze, add adapters, set types.
"""

from collections.abc import Mapping
from typing import Any

from vlmplan.architecture.adapters import TrainedCopy, add_lora, quantize
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Model, Part
from vlmplan.architecture.modules import Embedding, Linear
from vlmplan.errors import InputError
from vlmplan.recipe import Method, Recipe


def prepared_model(config: Mapping[str, Any], recipe: Recipe) -> Model:
    """The tree of ``config`` as ``recipe`` trains it.

    Raises InputError if nothing would be trained or a LoRA target matches nothing.
    """
    model = build_model(config)
    frozen = frozen_parts(model, recipe)
    if recipe.method is Method.QLORA:
        quantize(model, recipe.precision.dtype)
    for entry in model.parameters():
        entry.parameter.requires_grad = not recipe.trains_adapters and entry.part not in frozen
        entry.parameter.dtype = recipe.frozen_dtype
    if recipe.trains_adapters:
        before = {id(entry.parameter) for entry in model.parameters()}
        add_lora(model, rank=recipe.lora_rank, targets=recipe.lora_targets, frozen=frozen)
        if recipe.train_embeddings:
            _copy_embeddings(model)
        for entry in model.parameters():
            if id(entry.parameter) not in before:
                entry.parameter.requires_grad = True
    _set_types(model, recipe)
    for part, stack in model.stacks():
        stack.checkpoints = (
            recipe.vision_activation_checkpointing if part is not Part.LANGUAGE else recipe.activation_checkpointing
        )
    if not any(entry.parameter.requires_grad for entry in model.parameters()):
        raise InputError("every part of the model is frozen, so nothing would be trained")
    return model


def frozen_parts(model: Model, recipe: Recipe) -> frozenset[Part]:
    """The parts that the recipe leaves alone."""
    trains = {
        Part.VISION: recipe.train_vision,
        Part.PROJECTOR: recipe.train_projector,
        Part.LANGUAGE: recipe.train_language,
    }
    return frozenset(part for part, is_trained in trains.items() if not is_trained)


def _set_types(model: Model, recipe: Recipe) -> None:
    for entry in model.parameters():
        parameter = entry.parameter
        if parameter.stored_bytes is not None:
            parameter.dtype = recipe.precision.dtype  # what a 4-bit weight is dequantised to
        elif parameter.requires_grad:
            parameter.dtype = recipe.trained_dtype


def _copy_embeddings(model: Model) -> None:
    """Train the input embedding and the output head beside the adapters, on copies (peft's ``modules_to_save``)."""
    is_tied = model.ties_weights
    embedding = model.input_embeddings
    rows, width = embedding.weight.shape
    copy = Embedding(rows, width)
    _put(model, model.EMBEDDINGS, TrainedCopy(embedding, copy))
    head = model.head
    head_copy = Linear(head.in_features, head.out_features, bias=head.bias is not None)
    if is_tied:
        head_copy.weight = copy.weight
    _put(model, model.HEAD, TrainedCopy(head, head_copy))


def _put(model: Model, path: str, module: Any) -> None:
    parent, _, name = path.rpartition(".")
    (model.module(parent) if parent else model).replace(name, module)
