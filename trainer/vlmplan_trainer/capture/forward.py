"""One forward of a model with images on fake tensors, as far as it comes from them, as instructions."""

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from vlmplan.errors import InputError
from vlmplan_trainer.capture.attention import attention_captured
from vlmplan_trainer.capture.functions import functions_captured
from vlmplan_trainer.capture.operations import MODEL_DTYPE, Capture, Instruction, Shapes
from vlmplan_trainer.capture.watching import watch
from vlmplan_trainer.labels import DECODER_INPUTS
from vlmplan_trainer.probe import attention_of_parts, model_class, name_of, text_names
from vlmplan_trainer.processors.image_encoder import encodes_images_alone
from vlmplan_trainer.rehearse import shims
from vlmplan_trainer.rehearse.ledger import Ledger


def captured_forward(
    config: Any, tensors: Mapping[str, torch.Tensor], *, packs: bool, constants: Shapes = frozenset()
) -> tuple[list[Instruction], dict[str, int], Shapes]:
    """The instructions, the numbers of the inputs that come from images, by name, and shapes of what comes from none.
    ``constants``: those of one sample.

    ``tensors`` are real. ``packs``: images that lie one behind the other are one call of attention, as
    flash_attention_2 has it; else each is one of its own, as sdpa has it.
    Raises InputError where nothing of the images gets into its language model, or not in the place of tokens.
    """
    warnings.simplefilter("ignore")
    kind = model_class(config)
    names = set(inspect.signature(kind.forward).parameters)
    given = {name: value for name, value in tensors.items() if name in names}
    ids = given[DECODER_INPUTS if encodes_images_alone(config) else "input_ids"]
    num_samples, num_tokens = ids.shape
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with shims.installed(has_device=False, has_paged_states=False), fake_mode:
        capture = Capture(fake_mode, Ledger(counts_host_as_device=True), (num_samples, num_tokens), constants)
        with capture, attention_captured(capture), functions_captured(capture):
            model = kind._from_config(config, dtype=MODEL_DTYPE, attn_implementation=_attention(kind, config))
            _prepare(model, packs=packs)
            watch(model, capture, text_names(model, config) or [_layers_of_tokens(model)])
            inputs = _inputs(capture, given, num_tokens)
            numbers = {
                name: capture.slot(tensor) for name, tensor in inputs.items() if not capture.is_of_tokens(tensor)
            }
            more = {"use_cache": False} if "use_cache" in names else {}
            capture.is_on = True
            result = model(**inputs, **more)
            capture.add("returned")
            capture.is_on = False
            del result
    if not capture.has_met:
        raise InputError(f"nothing of the images gets into the language model of {kind.__name__}")
    if any(instruction.op == "enter" and instruction.values["by"] == "cat" for instruction in capture.instructions):
        raise InputError(f"the images of {kind.__name__} stand beside its tokens, not in the place of some")
    if not any(instruction.op == "language" for instruction in capture.instructions):
        raise InputError(f"the language model of {kind.__name__} was not told from what sees")
    return capture.instructions, numbers, frozenset(capture.made)


def _layers_of_tokens(model: Any) -> str:
    """The list of modules nearest to the token embedding, where the language model is no module of its own."""
    embeddings = name_of(model, model.get_input_embeddings()) or ""
    parent = embeddings.rpartition(".")[0]
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise InputError(f"{type(model).__name__} has no layers of a language model")
    return max(lists, key=lambda one: (one[0].rpartition(".")[0] == parent, -one[0].count("."), len(one[1])))[0]


def _attention(kind: Any, config: Any) -> str | dict[str, str]:
    return attention_of_parts(config, "sdpa" if kind._supports_sdpa else "eager")


def _prepare(model: nn.Module, *, packs: bool) -> None:
    """Nothing needs a gradient, so that only Python's own references keep what is computed."""
    model.requires_grad_(False)
    model.train()
    for module in model.modules():
        if packs and isinstance(module, PreTrainedModel) and module._supports_flash_attn:
            module.config._attn_implementation_internal = "flash_attention_2"


def _inputs(capture: Capture, given: Mapping[str, torch.Tensor], num_tokens: int) -> dict[str, torch.Tensor]:
    """Fake tensors: integers with their values, floats by shape alone, in the model's type as the trainer has them."""
    inputs: dict[str, torch.Tensor] = {}
    for name, value in given.items():
        if value.is_floating_point():
            inputs[name] = torch.empty(value.shape, dtype=MODEL_DTYPE)
        else:
            inputs[name] = capture.fake(value)
            if value.dim() > 1 and value.shape[1] == num_tokens:
                capture.give_tokens(inputs[name])
                continue
        capture.give_images(inputs[name])
    return inputs
