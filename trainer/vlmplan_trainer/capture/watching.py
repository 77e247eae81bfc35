"""Where a captured forward is: in which module, in which layer, in the language model."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from vlmplan_trainer.capture.functions import is_foldable
from vlmplan_trainer.capture.operations import Capture

CALLED_WHOLE = (nn.Linear, Conv1D)
"""What adapters and quantisation replace: one instruction each."""
FIRST_CALLED = ("0", "encoder")
"""Names of what is called first of a list of layers, and of a language model that is not called itself (Florence-2)."""


def watch(model: nn.Module, capture: Capture, language: Sequence[str]) -> None:
    """Let the modules of ``model`` tell ``capture`` when they run; ``language`` are the names of its language model."""
    capture.names.update((id(buffer), None) for buffer in model.buffers())
    capture.names.update((id(weight), name) for name, weight in model.named_parameters())
    inside = tuple(f"{name}." for name in language)
    begins = (*language, *(f"{name}.{first}" for name in language for first in FIRST_CALLED))
    for name, module in model.named_modules():
        if name in begins:
            module.register_forward_pre_hook(lambda *_: _enter_language(capture), prepend=True)
        if isinstance(module, CALLED_WHOLE):
            _watch_call(module, name, capture)
        elif not name.startswith(inside) and name and dict(module.named_parameters(recurse=False)):
            _watch_pair(module, name, capture, "begin", "end")
        if isinstance(module, nn.ModuleList) and not name.startswith(inside):
            for index, layer in enumerate(module):
                _watch_pair(layer, f"{name}.{index}", capture, "layer", "end_layer")
    for index, layer in enumerate(_layers(model, language)):
        layer.register_forward_pre_hook(partial(_begin_layer, capture, index + 1))


def _layers(model: nn.Module, language: Sequence[str]) -> Sequence[nn.Module]:
    """The layers of the language model: the longest list that it has itself, or is."""
    named = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    return max([list(module) for name, module in named if _is_own(name, language)], key=len, default=[])


def _is_own(name: str, language: Sequence[str]) -> bool:
    return name in language or name.rpartition(".")[0] in language


def _begin_layer(capture: Capture, count: int, *_: Any) -> None:
    capture.num_language_layers = count


def _enter_language(capture: Capture) -> None:
    if capture.is_on and not capture.is_in_language:
        capture.add("language")
        capture.is_in_language = True


def _watch_pair(module: nn.Module, name: str, capture: Capture, begin: str, end: str) -> None:
    def before(*_: Any) -> None:
        if capture.is_on and not capture.depth:
            capture.add(begin, module=name)

    def after(*_: Any) -> None:
        if capture.is_on and not capture.depth:
            capture.add(end, module=name)

    is_layer = begin == "layer"  # outside of what it has of its own
    module.register_forward_pre_hook(before, prepend=is_layer)
    module.register_forward_hook(after, prepend=not is_layer)


def _watch_call(module: nn.Module, name: str, capture: Capture) -> None:
    def before(*_: Any) -> None:
        capture.depth += 1

    def after(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        capture.depth -= 1
        if not capture.is_on or capture.depth or not isinstance(result, torch.Tensor):
            return
        x = (*args, *kwargs.values())[0]
        if capture.is_of_tokens(x) or capture.is_in_language:
            capture.enter([] if capture.is_of_tokens(x) else [x], by="call", into=[])
            capture.give_tokens(result)
        else:
            copies = not is_foldable(x)
            capture.add("call", [capture.operand(x)], [capture.output(result)], module=name, copies=copies)

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after, with_kwargs=True)
