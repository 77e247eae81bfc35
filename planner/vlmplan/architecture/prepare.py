"""A model tree made ready for a recipe: quantised, frozen, adapted, every weight with its element type.

The steps and their order are those of the trainer: load (quantised or not), freeze, add adapters, set types.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from vlmplan.architecture.adapter_names import split_layers
from vlmplan.architecture.adapters import AdapterSettings, TrainedCopy, add_lora, quantize
from vlmplan.architecture.families import build_model
from vlmplan.architecture.input_gradients import mark_input_embeddings
from vlmplan.architecture.int8_weight import Linear8bitLt
from vlmplan.architecture.liger_layers import use_compiled_norms, use_liger_layers
from vlmplan.architecture.model import Model, Part
from vlmplan.architecture.modules import Embedding, Linear, Stack
from vlmplan.architecture.packed_weight import Linear4bit, PackedLinear
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.reward_model import with_score
from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import PARTS_OF_LAYERS, CheckpointKind, Method, is_gated_mlp


def prepared_model(model: Mapping[str, Any] | Model, recipe: Recipe) -> Model:
    """The tree of a config.json, or the given new tree, which is changed, as ``recipe`` trains it.

    Raises InputError if nothing would be trained or a LoRA target matches nothing.
    """
    model = model if isinstance(model, Model) else build_model(model, recipe.transformers_version)
    if recipe.scores_rows:
        with_score(model)
    frozen, full = recipe.frozen_parts, recipe.full_parts
    if recipe.liger_layers:
        use_liger_layers(model)
    if recipe.compiled_norms:
        use_compiled_norms(model)
    mark_tileable_mlps(model)
    if recipe.trains_adapters:
        split_layers(model, recipe.lora_targets, recipe.lora_exclude)
    set_checkpointing(model.stacks(), recipe)
    if recipe.method.packs_weights:
        quantize(model, _packing(recipe), skipped=full)
    own: list[Parameter] = []  # trained beside adapters
    for part, parameter in model.distinct_parameters():
        is_trained = part in full if recipe.trains_adapters else part not in frozen
        parameter.requires_grad = is_trained and not parameter.is_constant
        parameter.dtype = recipe.frozen_dtype
        own += [parameter] if recipe.trains_adapters and parameter.requires_grad else []
    copies = _adapt(model, recipe, frozen | full) if recipe.trains_adapters else []
    parameters = [parameter for _, parameter in model.distinct_parameters()]
    _set_types(parameters, recipe)
    model.buffer_dtype = recipe.buffer_dtype
    for parameter in copies:
        parameter.dtype = recipe.copy_dtype
    for parameter in own:
        parameter.dtype = recipe.full_part_dtype
    mark_input_embeddings(model)
    if not any(parameter.requires_grad for parameter in parameters):
        raise InputError(
            "every part of the model is frozen, so nothing would be trained; --train-language, --train-vision and "
            "--train-projector, where it has them, train one"
        )
    return model


def _adapt(model: Model, recipe: Recipe, closed: frozenset[Part]) -> list[Parameter]:
    """Add the recipe's adapters outside ``closed`` parts, which train with all that comes with them; the trained copies
    of other modules are returned."""
    loaded = {id(parameter) for _, parameter in model.distinct_parameters()}
    settings = AdapterSettings(
        rank=recipe.lora_rank,
        dropout=recipe.lora_dropout,
        use_dora=recipe.use_dora,
        changes_base=recipe.changes_base,
        seen_dtype=recipe.seen_adapter_dtype,
        is_fused=recipe.fused_adapters,
    )
    add_lora(model, settings, targets=recipe.lora_targets, exclude=recipe.lora_exclude, closed=closed)
    copies = _copies(model, recipe)
    for _, parameter in model.distinct_parameters():
        if id(parameter) not in loaded:
            parameter.requires_grad = True
    return copies


def _packing(recipe: Recipe) -> Callable[[Linear], PackedLinear]:
    """What bitsandbytes puts in the place of a Linear."""
    if recipe.method is Method.LORA_8BIT:
        return Linear8bitLt
    return partial(Linear4bit, compute_dtype=recipe.precision.dtype, double_quantises=recipe.use_double_quant)


def set_checkpointing(stacks: Iterable[tuple[Part, Stack]], recipe: Recipe) -> None:
    """Switch activation checkpointing of the language model's layers and of all others, whole or part by part."""
    in_parts = recipe.checkpoint_kind is CheckpointKind.PARTS
    for part, stack in stacks:
        is_language = part is Part.LANGUAGE
        checkpoints = recipe.activation_checkpointing if is_language else recipe.vision_activation_checkpointing
        stack.checkpoints = checkpoints and not in_parts
        for layer in stack.kinds if checkpoints and in_parts else ():
            for names in PARTS_OF_LAYERS:
                found = next((layer.modules_by_name[name] for name in names if name in layer.modules_by_name), None)
                if found is not None:
                    found.is_checkpointed = True


def mark_tileable_mlps(model: Model) -> None:
    """The dense MLPs of the language model's layers, which ``--tiled-mlp`` runs tile by tile: modules ``mlp`` with a
    gate and a projection back. The trainer's ``models/tiling.py`` finds them by the same names."""
    for part, stack in model.stacks():
        for layer in stack.kinds if part is Part.LANGUAGE else ():
            mlp = layer.modules_by_name.get("mlp")
            if mlp is not None and is_gated_mlp(mlp.modules_by_name):
                mlp.can_be_tiled = True


def _set_types(parameters: Iterable[Parameter], recipe: Recipe) -> None:
    for parameter in parameters:
        if parameter.stored_bytes is not None:
            parameter.dtype = recipe.loaded_dtype  # to which a packed weight is dequantised, whatever multiplies it
        elif parameter.requires_grad:
            parameter.dtype = recipe.trained_dtype


def _copies(model: Model, recipe: Recipe) -> list[Parameter]:
    """Train beside the adapters, on copies (peft's ``modules_to_save``), which are returned: the input embedding and
    the output head where the recipe says so, and a head that scores rows, which nobody has trained before, always."""
    is_tied, copies = model.ties_weights, list[Parameter]()
    embedding = model.input_embeddings
    copy = Embedding(*embedding.weight.shape)
    if recipe.train_embeddings:
        _put(model, model.EMBEDDINGS, TrainedCopy(embedding, copy))
        copies += copy.parameters_by_name.values()
    if recipe.train_embeddings or recipe.scores_rows:
        head = model.head
        head_copy = Linear(head.in_features, head.out_features, bias=head.bias is not None)
        if is_tied:
            head_copy.weight = copy.weight
        _put(model, model.HEAD, TrainedCopy(head, head_copy))
        copies += head_copy.parameters_by_name.values()
    return copies


def _put(model: Model, path: str, module: Any) -> None:
    parent, _, name = path.rpartition(".")
    (model.module(parent) if parent else model).replace(name, module)
