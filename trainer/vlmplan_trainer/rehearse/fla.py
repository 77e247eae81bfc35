"""The kernels of gated delta nets, of flash-linear-attention and causal-conv1d, which are compiled for a card: what
their autograd functions keep and allocate, without what is computed.

Sources: fla-core 0.6.0 ``ops/gated_delta_rule/chunk.py`` and what it calls, causal-conv1d 1.6
``causal_conv1d_interface.py``. Names are theirs. tests/tools/fla_kernels.py runs fla's own code beside this.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from vlmplan_trainer.rehearse.fla_kimi import chunk_kda
from vlmplan_trainer.rehearse.fla_products import CHUNK, called_as_fla_does, count, states, unit
from vlmplan_trainer.rehearse.replaced import replaced

MODELS = ("olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next")
"""transformers' models with gated delta nets."""
RULE, CONVOLUTION = "torch_chunk_gated_delta_rule", "causal_conv1d_fn"
"""What they call, which is one of the packages' functions where those are installed."""
KIMI, KIMI_RULE = "kimi_linear", "chunk_kimi_delta_attention"
"""transformers' model with Kimi delta attention, and what it calls."""


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, **kwargs: Any) -> Tensor:
    """x (batch, channels, tokens), channels next to each other, with a SiLU behind it."""
    assert bias is None
    return _Convolution.apply(x, weight)


class _DeltaRule(torch.autograd.Function):
    """``ChunkGatedDeltaRuleFunction``. ``input_guard`` makes every input contiguous."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        given = [x.contiguous() for x in inputs]
        q, k, v, g, beta = given
        q, q_rstd = unit(q)
        k, k_rstd = unit(k)
        g = torch.empty_like(g, dtype=torch.float32)
        solved = k.new_empty((*v.shape[:3], CHUNK))
        w, u = k.new_empty((*v.shape[:3], k.shape[-1])), torch.empty_like(v)
        h, v_new = states(k, v)
        count(k, v, passes=1)
        o = torch.empty_like(v_new)
        ctx.save_for_backward(q, q_rstd, k, k_rstd, v, g, beta, solved)
        del w, u, h
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, ...]:
        q, _q_rstd, k, _k_rstd, v, g, beta, _solved = ctx.saved_tensors
        dq, dk, dv, db, dg = _gradients(q, k, v, g, beta, do.contiguous())
        dq = torch.empty_like(dq)
        dk = torch.empty_like(dk)
        return dq, dk, dv, dg, db


chunk_gated_delta_rule = called_as_fla_does(_DeltaRule)


def _gradients(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    """``chunk_gated_delta_rule_bwd``."""
    wide = (*v.shape[:3], k.shape[-1])
    w, u = k.new_empty(wide), torch.empty_like(v)
    h, v_new = states(k, v)
    dv = torch.empty_like(do)
    dh = torch.empty_like(h)
    dv = torch.empty_like(dv)
    dq, dk, dg, dw = q.new_empty(wide), k.new_empty(wide), g.new_empty((1, *g.shape)), torch.empty_like(w)
    dq = _of_heads(dq, q)
    dk = _of_heads(dk, k)
    dg = dg.sum(0)
    dk2, dv, dg2, db = k.new_empty(wide), torch.empty_like(v), torch.empty_like(g), torch.empty_like(beta)
    dk2 = _of_heads(dk2, k)
    dk.add_(dk2)
    dg.add_(dg2)
    dg = torch.empty_like(dg)
    count(k, v, passes=3)
    del u, v_new, dh, dw
    return dq, dk, dv, db, dg


def _of_heads(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient of x of heads that several heads of values share."""
    batch, num_tokens, num_heads, width = x.shape
    if gradient.shape[2] == num_heads:
        return gradient
    return gradient.view(batch, num_tokens, num_heads, -1, width).sum(3)


class _Convolution(torch.autograd.Function):
    """``CausalConv1dFn``: the activation is made again in backward, the gradient of the weight summed up in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        if grad.stride(1) != 1:
            grad = grad.transpose(-1, -2).contiguous().transpose(-1, -2)
        grad_x = torch.empty_like(x)
        wide = torch.zeros_like(weight, dtype=torch.float32)
        return grad_x, wide.to(weight.dtype)


@contextmanager
def delta_kernels() -> Iterator[None]:
    """Models with gated delta nets call these functions."""
    with ExitStack() as stack:
        for name in (*MODELS, KIMI):
            module = import_module(f"transformers.models.{name}.modeling_{name}")
            rule = (KIMI_RULE, chunk_kda) if name == KIMI else (RULE, chunk_gated_delta_rule)
            stack.enter_context(replaced(module, *rule))
            stack.enter_context(replaced(module, CONVOLUTION, causal_conv1d_fn))
        yield


__all__ = ["causal_conv1d_fn", "chunk_gated_delta_rule", "delta_kernels"]
