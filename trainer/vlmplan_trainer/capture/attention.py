"""Attention as one instruction, whichever kernel computes it: transformers' and torch's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vlmplan_trainer.capture.operations import Capture
from vlmplan_trainer.rehearse.values import value_of

IMPLEMENTATIONS = ("flash_attention_2", "sdpa")


@contextmanager
def attention_captured(capture: Capture) -> Iterator[None]:
    """Within, attention is one instruction: what models leave to transformers' table of implementations, and calls of
    torch's own function with heads."""
    before = {name: ALL_ATTENTION_FUNCTIONS[name] for name in IMPLEMENTATIONS}
    of_torch = nn.functional.scaled_dot_product_attention
    try:
        for name in IMPLEMENTATIONS:
            ALL_ATTENTION_FUNCTIONS[name] = _of_transformers(capture)
        nn.functional.scaled_dot_product_attention = _of_torch(capture, of_torch)
        yield
    finally:
        nn.functional.scaled_dot_product_attention = of_torch
        for name, function in before.items():
            ALL_ATTENTION_FUNCTIONS[name] = function


def _of_transformers(capture: Capture) -> Any:
    def attention(
        module: nn.Module, query: Any, key: Any, value: Any, attention_mask: Any = None, **more: Any
    ) -> tuple[Any, None]:
        """q, k and v are (batch, heads, tokens, width of a head); the result has tokens before heads."""
        result = _result(capture, query, value)
        is_causal = more.get("is_causal")
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        _attend(
            capture,
            (query, key, value),
            attention_mask,
            result,
            is_causal=causal and attention_mask is None and query.shape[2] > 1,
            lengths=_lengths(more.get("cu_seq_lens_q")),
            dropout=float(more.get("dropout", 0.0)),
            is_of_torch=False,
        )
        return result, None

    return attention


def _of_torch(capture: Capture, function: Any) -> Any:
    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Any:
        """The same as ``_of_transformers``, but for the result, which has heads before tokens."""
        if not capture.is_on or capture.depth or query.dim() != 4:
            return function(query, key, value, attn_mask, dropout_p, is_causal, **more)
        result = _result(capture, query, value)
        _attend(
            capture,
            (query, key, value),
            attn_mask,
            result,
            is_causal=is_causal,
            lengths=None,
            dropout=float(dropout_p),
            is_of_torch=True,
        )
        return result.transpose(1, 2)

    return attention


def _result(capture: Capture, query: Any, value: Any) -> Any:
    """(batch, tokens, heads, width of a head's values), as kernels that take masks lay it out."""
    capture.depth += 1
    result = torch.empty((query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), dtype=query.dtype)
    capture.depth -= 1
    return result


def _attend(capture: Capture, parts: tuple[Any, Any, Any], mask: Any, result: Any, **values: Any) -> None:
    """Note the instruction. ``is_of_torch``: not by the implementation that a model is loaded with."""
    if not capture.is_on or capture.depth:
        return
    query = parts[0]
    if capture.is_in_language or any(capture.is_of_tokens(part) for part in parts):
        of_tokens = [part for part in parts if capture.is_of_tokens(part)]
        capture.enter([part for part in parts if not capture.is_of_tokens(part)], by="attend", into=of_tokens)
        capture.give_tokens(result)
        return
    capture.add(
        "attend",
        [*(capture.operand(part) for part in parts), None if mask is None else capture.operand(mask)],
        [capture.output(result)],
        keeps_heads_together=query.is_contiguous() and query.shape[1] > 1,
        **values,
    )


def _lengths(ends: Any) -> list[int] | None:
    """Tokens of each sequence that is packed with others into one; None where none is."""
    value = None if ends is None else value_of(ends)
    return None if value is None else value.diff().tolist()
