"""Liger's fused linear cross entropy; where there is no CUDA, the same steps by torch.

On a CUDA card this is liger-kernel's own autograd function. Its Triton kernels run nowhere else, so on the CPU, and
where a run is rehearsed, ``_FusedCrossEntropy`` takes the same steps and holds the same tensors: see
``vlmplan.architecture.losses.liger``, which counts them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from vlmplan.errors import InputError
from vlmplan.recipe.choices import liger_chunk_tokens
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.losses.cross_entropy import LogitRule, Product

PIECES = 64
"""What the Triton kernel does in registers is done here for one such part of a chunk at a time."""


def liger_cross_entropy(product: Product, bias: Tensor | None, labels: Tensor, *, rule: LogitRule) -> Tensor:
    """The sum over tokens of -log softmax(rule(x @ weight.T + bias))[label], a float32 scalar.

    ``labels`` (n,) are those of the next tokens already; ``IGNORED_LABEL`` counts nothing.
    Raises InputError where Liger's function cannot be had, or the model scales its logits, which it cannot.
    """
    if rule.scale != 1.0:
        raise InputError("--loss liger does not scale logits as this model does; give --loss chunked or full")
    x, weight = product.x, product.weight
    if x.device.type == "cuda":
        settings = (bias, None, IGNORED_LABEL, 0.0, 0.0, "sum", rule.cap)
        return _liger_function().apply(x, weight, labels, *settings)[0]
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    with torch.autocast(kind, enabled=False):
        return _FusedCrossEntropy.apply(x, weight, bias, labels, rule, dtype)


def _liger_function() -> Any:
    try:
        from liger_kernel.ops import (  # pyright: ignore[reportMissingImports]
            LigerFusedLinearCrossEntropyFunction,
        )
    except ImportError as error:
        raise InputError(
            f"--loss liger needs the package liger-kernel, which is not here ({error}); pip install liger-kernel, "
            f"or give --loss chunked"
        ) from None
    return LigerFusedLinearCrossEntropyFunction


class _FusedCrossEntropy(torch.autograd.Function):
    """``LigerFusedLinearCrossEntropyFunction`` with reduction "sum", on a card of compute capability 8.0 or newer."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, rule: LogitRule, dtype: torch.dtype
    ) -> Tensor:
        num_tokens, width = x.shape
        chunk = liger_chunk_tokens(num_tokens, width, len(weight))
        writes_into_place = x.dtype == weight.dtype == dtype and (bias is None or bias.dtype == dtype)
        grad_x = torch.zeros_like(x)
        grad_weight = torch.zeros_like(weight) if x.requires_grad and weight.requires_grad else None
        grad_bias = torch.zeros_like(bias) if x.requires_grad and bias is not None else None
        losses = torch.zeros(len(x), dtype=torch.float32, device=x.device)
        is_counted = labels != IGNORED_LABEL
        buffer = x.new_empty((chunk, len(weight))) if writes_into_place else None
        cached = None
        for start in range(0, len(x), chunk):
            rows = slice(start, min(start + chunk, len(x)))
            logits = _logits(x[rows], weight, bias, buffer, dtype)
            _write_gradients(
                logits, labels[rows], is_counted[rows], losses[rows], rule, wants_gradients=x.requires_grad
            )
            if not x.requires_grad:
                continue
            if buffer is None:
                cast = weight.to(dtype) if cached is None else cached
                grad_x[rows] = logits @ cast
                if weight.requires_grad and torch.is_autocast_cache_enabled():
                    cached = cast  # as autocast keeps it, on a card until it ends
                del cast
            else:
                torch.mm(logits, weight, out=grad_x[rows])
            if grad_weight is not None:
                _add_weight_gradient(grad_weight, logits, x[rows].to(dtype))
            if grad_bias is not None:
                grad_bias.add_(logits.sum(0))
            del logits
        del buffer
        ctx.save_for_backward(grad_x if x.requires_grad else None, grad_weight, grad_bias)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kept = [None if saved_tensor is None else saved_tensor.mul_(grad) for saved_tensor in ctx.saved_tensors]
        return (*kept, None, None, None)


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor | None, dtype: torch.dtype) -> Tensor:
    """(c, V) of a chunk ``x`` (c, H), in ``buffer`` where there is one."""
    if buffer is None:
        return linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    logits = torch.mm(x, weight.t(), out=buffer[: len(x)])
    return logits if bias is None else logits.add_(bias)


def _write_gradients(
    logits: Tensor, labels: Tensor, is_counted: Tensor, losses: Tensor, rule: LogitRule, *, wants_gradients: bool
) -> None:
    """``liger_cross_entropy_kernel``: logits (c, V) become (softmax - one-hot) times the rule's slope, in place, and
    ``losses`` (c,) those of the tokens."""
    piece = -(-len(logits) // PIECES)
    parts = (whole.split(piece) for whole in (logits, labels, is_counted, losses))
    for some, its_labels, counted, its_losses in zip(*parts, strict=True):
        targets = its_labels.clamp(min=0)[:, None]
        scores = rule.apply_(some.float())
        log_sums = torch.logsumexp(scores, dim=-1, keepdim=True)
        its_losses.copy_((log_sums - scores.gather(1, targets))[:, 0].where(counted, 0.0))
        if wants_gradients:
            slope = rule.slope(scores)
            grads = (scores - log_sums).exp_().scatter_add_(1, targets, torch.full_like(log_sums, -1.0))
            some.copy_(grads.mul_(slope).mul_(counted[:, None]))


def _add_weight_gradient(gradient: Tensor, grad_logits: Tensor, x: Tensor) -> None:
    """Add grad_logits.T @ x. Of 16-bit logits into float32 CUDA adds within the product; here part by part."""
    if gradient.dtype == torch.float32 == grad_logits.dtype:
        gradient += torch.mm(grad_logits.t(), x)
    elif gradient.dtype == grad_logits.dtype:
        gradient.addmm_(grad_logits.t(), x)
    else:
        num_rows = -(-len(gradient) // PIECES)
        for some, grad_columns in zip(gradient.split(num_rows), grad_logits.split(num_rows, dim=1), strict=True):
            some += torch.mm(grad_columns.t(), x)
