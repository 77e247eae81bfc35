"""Where a captured forward is: in which module, in which layer, in attention, in the language model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from vlmplan_trainer.capture.functions import is_foldable
from vlmplan_trainer.capture.operations import Capture
from vlmplan_trainer.rehearse.values import value_of

CALLED_WHOLE = (nn.Linear, Conv1D)
"""What adapters and quantisation replace: one instruction each."""
IMPLEMENTATIONS = ("flash_attention_2", "sdpa")


def watch(model: nn.Module, capture: Capture, language: Sequence[str]) -> None:
    """Let the modules of ``model`` tell ``capture`` when they run; ``language`` are the names of its language model."""
    capture.names.update((id(buffer), None) for buffer in model.buffers())
    capture.names.update((id(weight), name) for name, weight in model.named_parameters())
    inside = tuple(f"{name}." for name in language)
    for name, module in model.named_modules():
        if name in (*language, *(f"{other}.0" for other in language)):
            module.register_forward_pre_hook(lambda *_: _enter_language(capture), prepend=True)
        if isinstance(module, CALLED_WHOLE):
            _watch_call(module, name, capture)
        elif not name.startswith(inside) and name and dict(module.named_parameters(recurse=False)):
            _watch_pair(module, name, capture, "begin", "end")
        if isinstance(module, nn.ModuleList) and not name.startswith(inside):
            for index, layer in enumerate(module):
                _watch_pair(layer, f"{name}.{index}", capture, "layer", "end_layer")


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


@contextmanager
def attention_captured(capture: Capture) -> Iterator[None]:
    """Within, attention that models leave to transformers' table of implementations is one instruction."""
    before = {name: ALL_ATTENTION_FUNCTIONS[name] for name in IMPLEMENTATIONS}
    try:
        for name in IMPLEMENTATIONS:
            ALL_ATTENTION_FUNCTIONS[name] = _attention(capture)
        yield
    finally:
        for name, function in before.items():
            ALL_ATTENTION_FUNCTIONS[name] = function


def _attention(capture: Capture) -> Any:
    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any = None, **more: Any
    ) -> tuple[Any, None]:
        """q, k and v are (batch, heads, tokens, width of a head); the result has tokens before heads."""
        capture.depth += 1
        result = torch.empty((query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), dtype=query.dtype)
        capture.depth -= 1
        if not capture.is_on or capture.depth:
            return result, None
        parts = [query, key, value]
        if capture.is_in_language or any(capture.is_of_tokens(part) for part in parts):
            of_tokens = [part for part in parts if capture.is_of_tokens(part)]
            capture.enter([part for part in parts if not capture.is_of_tokens(part)], by="attend", into=of_tokens)
            capture.give_tokens(result)
            return result, None
        mask = None if attention_mask is None else capture.operand(attention_mask)
        is_causal = more.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        capture.add(
            "attend",
            [*(capture.operand(part) for part in parts), mask],
            [capture.output(result)],
            is_causal=causal and attention_mask is None and query.shape[2] > 1,
            lengths=_lengths(more.get("cu_seq_lens_q")),
            keeps_heads_together=query.is_contiguous() and query.shape[1] > 1,
            dropout=float(more.get("dropout", 0.0)),
        )
        return result, None

    return attention


def _lengths(ends: Any) -> list[int] | None:
    """Tokens of each sequence that is packed with others into one; None where none is."""
    value = None if ends is None else value_of(ends)
    return None if value is None else value.diff().tolist()
