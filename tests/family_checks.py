"""Checks that hold a module tree to the transformers model it describes (needs torch and transformers)."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from tape_probe import predicted_step
from torch_probe import Measured, measured_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch, Model
from vlmplan.model_types.encoder_decoder import HEARING_TYPES
from vlmplan.units import DType
from vlmplan.workload import EAGER_TOWER_TYPES


def real_model(config: Mapping[str, Any], *, attention: str = "sdpa", dtype: torch.dtype = torch.bfloat16) -> Any:
    """The transformers model of a config.json dictionary, on the device that is in force."""
    values = copy.deepcopy(dict(config))
    model_type = values.pop("model_type")
    real_config = AutoConfig.for_model(model_type, **values)
    real_config.use_cache = False
    real_config.get_text_config().use_cache = False  # the decoder of a composite model asks its own configuration
    has_class_of_images = type(real_config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    auto_class = AutoModelForImageTextToText if has_class_of_images else AutoModelForCausalLM
    if real_config.is_encoder_decoder and not has_class_of_images:
        auto_class = AutoModelForSpeechSeq2Seq if model_type in HEARING_TYPES else AutoModelForSeq2SeqLM
    chosen: Any = attention
    if getattr(real_config, "audio_config", None) is not None and model_type in EAGER_TOWER_TYPES:
        chosen = dict.fromkeys(("", *real_config.sub_configs), attention) | {"audio_config": "eager"}
    model = auto_class.from_config(real_config, dtype=dtype, attn_implementation=chosen)
    for parameter in model.parameters():  # some classes make float32 of a few, which the trainer changes too
        parameter.data = parameter.data.to(dtype)
    return model


def switch_checkpointing(model: Any, *, on: bool) -> Any:
    """``model``, whose layers run again in backward if ``on``, as the trainer has it.

    transformers also makes the results of all embeddings, a vision tower's too, need a gradient: then a frozen tower
    keeps its layers' inputs and runs backward for nothing. Non-reentrant checkpoints do not need that.
    """
    if on:
        model.gradient_checkpointing_enable()
        model.disable_input_require_grads()
    return model


def assert_parameters_and_linears_match(config: Mapping[str, Any], *, attention: str = "sdpa") -> None:
    """Names, sizes and order of all parameters are those of the real model, and the Linears (and 1-D convolutions) that
    adapters and quantisation replace have the same names; activations and rotary positions that are modules have names
    of the model's.
    """
    from transformers.pytorch_utils import Conv1D

    from vlmplan.architecture.adapter_names import weightless_names
    from vlmplan.architecture.modules import Linear

    with torch.device("meta"):
        model = real_model(config, attention=attention)
    tree = build_model(config)
    parameters = [(name, parameter.numel()) for name, parameter in model.named_parameters()]
    assert [(entry.name, entry.parameter.numel) for entry in tree.parameters()] == parameters
    axes = [(name, parameter.dim()) for name, parameter in model.named_parameters()]
    assert [(entry.name, entry.parameter.num_axes) for entry in tree.parameters()] == axes
    linears = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)}
    assert {name for name, module in tree.named_modules() if isinstance(module, Linear)} == linears
    weightless = {f"{name}.{one}" for name, module in tree.named_modules() for one in weightless_names(module)}
    assert weightless <= {name for name, _ in model.named_modules()}


def assert_step_matches(
    config: Mapping[str, Any],
    batch: Batch,
    inputs: Mapping[str, torch.Tensor],
    floats: Mapping[str, tuple[int, ...]] | None = None,
    *,
    checkpoints: bool = False,
    attention: str = "sdpa",
    frozen: Iterable[str] = (),
    tolerance: float = 0.01,
    backward_tolerance: float | None = None,
    keeps_gradients: bool = False,
) -> tuple[Measured, Any]:
    """Bytes kept after forward and the peaks of forward and backward agree within ``tolerance``, the last within
    ``backward_tolerance`` if that is given, but for integers that trees do not count (``uncounted_bytes``).

    ``frozen`` are name prefixes of parameters that need no gradient. Returns both sides for a closer look.
    """
    frozen = tuple(frozen)

    def build() -> Any:
        model = real_model(config, attention=attention)
        for name, parameter in model.named_parameters():
            if name.startswith(frozen) and frozen:
                parameter.requires_grad_(False)
        return switch_checkpointing(model, on=checkpoints)

    measured = measured_step(build, dict(inputs), floats=dict(floats or {}), keeps_gradients=keeps_gradients)
    tree: Model = build_model(config)
    for entry in tree.parameters():
        if entry.name.startswith(frozen) and frozen:
            entry.parameter.requires_grad = False
    gets_mask = "attention_mask" in inputs
    predicted = predicted_step(
        tree,
        batch,
        checkpoints=checkpoints,
        implementation=attention,
        keeps_gradients=keeps_gradients,
        gets_mask=gets_mask,
    )
    assert keeps_gradients or predicted.end_live == 0
    backward_tolerance = tolerance if backward_tolerance is None else backward_tolerance
    allowed = {"forward_live": tolerance, "forward_peak": tolerance, "backward_peak": backward_tolerance}
    for name, share in allowed.items():
        expected, found = getattr(measured, name), getattr(predicted, name)
        lacks = expected - found - uncounted_bytes(batch)
        assert max(lacks, found - expected) <= share * expected, (name, found, expected, found / expected - 1)
    return measured, predicted


def uncounted_bytes(batch: Batch) -> int:
    """Labels of the next tokens, which transformers' ``ForCausalLMLoss`` makes and ``nll_loss`` saves with their total
    weight in float32, and positions, which checkpointed layers keep."""
    return (batch.micro_batch + 1) * batch.num_tokens * DType.INT64.num_bytes + DType.FLOAT32.num_bytes


def assert_checkpointed_step_matches(
    config: Mapping[str, Any],
    batch: Batch,
    inputs: Mapping[str, torch.Tensor],
    *,
    attention: str = "sdpa",
    tolerance: float = 0.01,
    backward_tolerance: float = 0.001,
) -> None:
    """A step with checkpoints, which keeps little: integers of a few bytes a token (positions, shifted labels) show
    there, and not at its peak.
    """
    assert_step_matches(
        config,
        batch,
        inputs,
        attention=attention,
        checkpoints=True,
        tolerance=tolerance,
        backward_tolerance=backward_tolerance,
    )


def assert_autocast_step_matches(
    config: Mapping[str, Any],
    batch: Batch,
    inputs: Mapping[str, torch.Tensor],
    floats: Mapping[str, tuple[int, ...]] | None = None,
    *,
    attention: str = "sdpa",
    frozen: Iterable[str] = (),
    tolerance: float = 0.002,
    checkpoints: bool = False,
    caches_casts: bool = False,
    allowed: Mapping[str, float] | None = None,
) -> None:
    """The same of a model in float32 under autocast to bfloat16, whose casts of weights are not kept unless it
    ``caches_casts``; parameters with the prefixes ``frozen`` are in bfloat16. ``allowed``: another tolerance of each
    number that is compared."""
    frozen = tuple(frozen)

    def build() -> Any:
        model = real_model(config, attention=attention, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.startswith(frozen) and frozen:
                parameter.requires_grad_(False)
                parameter.data = parameter.data.bfloat16()
        return switch_checkpointing(model, on=checkpoints)

    measured = measured_step(build, dict(inputs), floats=dict(floats or {}), autocast=torch.bfloat16)
    tree = build_model(config)
    for entry in tree.parameters():
        is_frozen = bool(frozen) and entry.name.startswith(frozen)
        entry.parameter.dtype = DType.BFLOAT16 if is_frozen else DType.FLOAT32
        entry.parameter.requires_grad = not is_frozen
    predicted = predicted_step(
        tree,
        batch,
        autocast=DType.BFLOAT16,
        implementation=attention,
        checkpoints=checkpoints,
        caches_casts=caches_casts,
    )
    names = ("forward_live", "forward_peak", "backward_peak")
    for name, share in (allowed or dict.fromkeys(names, tolerance)).items():
        expected, found = getattr(measured, name), getattr(predicted, name)
        assert abs(found - expected) <= share * expected, (name, found, expected, found / expected - 1)


def text_inputs(batch: Batch, vocab_size: int = 100) -> dict[str, torch.Tensor]:
    """input_ids, labels and an attention mask without padding."""
    ids = torch.arange(batch.micro_batch * batch.num_tokens).reshape(batch.micro_batch, batch.num_tokens) % vocab_size
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
