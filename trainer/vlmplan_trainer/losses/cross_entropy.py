"""Cross-entropy of a wide output head without its logits: never more than one chunk of them exists.

Loss and gradients are computed in the same pass, chunk by chunk of tokens, and only the gradients are kept until
backward. Symbols: n tokens, h width, V vocabulary, c tokens of a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlmplan_trainer.labels import IGNORED_LABEL

"""The label of a position that has none (torch's and transformers' ``ignore_index``)."""
KEPT_SCALE = 64.0
"""What kept gradients are multiplied by until the loss scale is known in backward. p - y of a wide vocabulary is often
below float16's smallest number, 6e-8; 64 * h stays far below its largest. A power of two, so it rounds nothing."""

PIECES_PER_CHUNK = 8
"""Softmax runs over one of them at a time, so that its own results are that much smaller than the chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitRule:
    """What a model does with the head's result: ``cap * tanh(scale * x / cap)``, without a cap ``scale * x``."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        scaled = logits * self.scale
        return scaled if self.cap is None else torch.tanh(scaled / self.cap) * self.cap

    def apply_(self, logits: Tensor) -> Tensor:
        """The transformation of ``logits`` in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, results: Tensor) -> Tensor | float:
        """The derivative where the rule's results are ``results``: d(c tanh(sx/c))/dx = s (1 - (y/c)²)."""
        return self.scale if self.cap is None else (results / self.cap).square_().neg_().add_(1).mul_(self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One summand of the logits, ``x @ weight.T``: x (n, in), weight (V, in)."""

    x: Tensor
    weight: Tensor


def chunked_cross_entropy(
    products: Sequence[Product], bias: Tensor | None, labels: Tensor, *, rule: LogitRule, chunk: int
) -> Tensor:
    """The sum over tokens of -log softmax(rule(Σ x @ weight.T + bias))[label], a float32 scalar.

    ``labels`` (n,) are those of the next tokens already; ``IGNORED_LABEL`` counts nothing. Products are computed in the
    type of autocast, else in that of the first x; everything after them in float32. ``bias`` (V,) is trained or not.
    """
    flat = [tensor for product in products for tensor in (product.x, product.weight)]
    first = products[0].x
    kind = first.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else first.dtype
    with torch.autocast(kind, enabled=False):
        settings = (rule, chunk, dtype, torch.is_grad_enabled())
        return _ChunkedCrossEntropy.apply(settings, labels, bias, *flat)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """``flat`` is x, weight, x, weight, ..."""

    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], labels: Tensor, bias: Tensor | None, *flat: Tensor) -> Tensor:
        rule, chunk, dtype, wants_gradients = settings
        needs = [wants_gradients and needed for needed in ctx.needs_input_grad[2:]]
        run = _Run(rule, labels, bias, flat, dtype, needs)
        for start in range(0, labels.shape[0], chunk):
            run.add(slice(start, start + chunk))
        ctx.weight_scale = run.weight_scale
        ctx.save_for_backward(*run.gradients)
        return run.loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        bias, *flat = ctx.saved_tensors
        factor = grad / KEPT_SCALE
        weight_factor = factor / ctx.weight_scale
        results = [_scaled(bias, weight_factor)]
        for index, kept in enumerate(flat):
            results.append(_scaled(kept, weight_factor if index % 2 else factor))
        return (None, None, *results)


def _scaled(kept: Tensor | None, factor: Tensor) -> Tensor | None:
    return None if kept is None else kept.mul_(factor)


class _Run:
    """The sums of one pass: ``loss``, and ``gradients`` of (bias, x, weight, x, weight, ...), None where not needed.

    Gradients of x are ``KEPT_SCALE`` times the true ones. Those of bias and weights are sums over all tokens, which
    float16 might not hold: they are multiplied by ``weight_scale`` too, a power of two near 1 / n.
    """

    def __init__(
        self,
        rule: LogitRule,
        labels: Tensor,
        bias: Tensor | None,
        flat: Sequence[Tensor],
        dtype: torch.dtype,
        needs: Sequence[bool],
    ) -> None:
        self.rule, self.labels, self.dtype = rule, labels, dtype
        self.weight_scale = 2.0 ** -(max(1, labels.shape[0]).bit_length() - 1)
        self.bias = None if bias is None else bias.to(dtype)
        self.xs = flat[0::2]
        self.weights = [weight.to(dtype) for weight in flat[1::2]]
        inputs = (bias, *flat)
        self.gradients = [
            torch.zeros_like(tensor) if needed and tensor is not None else None
            for tensor, needed in zip(inputs, needs, strict=True)
        ]
        self.needs_any = any(gradient is not None for gradient in self.gradients)
        self.loss = torch.zeros((), dtype=torch.float32, device=labels.device)

    def add(self, rows: slice) -> None:
        """Add a chunk of tokens."""
        xs = [x[rows].to(self.dtype) for x in self.xs]
        scores = self.rule.apply_(self._logits(xs))
        self._add_pieces(scores, self.labels[rows])
        if self.needs_any:
            grad_logits = scores.to(self.dtype)
            del scores
            self._add_gradients(rows, grad_logits, xs)

    def _logits(self, xs: Sequence[Tensor]) -> Tensor:
        """(c, V), in float32."""
        logits = torch.nn.functional.linear(xs[0], self.weights[0], self.bias)
        for x, weight in zip(xs[1:], self.weights[1:], strict=True):
            logits.addmm_(x, weight.t())
        return logits.float()

    def _add_pieces(self, scores: Tensor, labels: Tensor) -> None:
        """What is as wide as the chunk once more lives for a piece of it only. No view of ``scores`` outlives this."""
        piece = -(-scores.shape[0] // PIECES_PER_CHUNK)
        for some, its_labels in zip(scores.split(piece), labels.split(piece), strict=True):
            self._add_losses(some, its_labels)

    def _add_losses(self, scores: Tensor, labels: Tensor) -> None:
        """``scores`` (some, V) become ``KEPT_SCALE`` times (softmax - one-hot) times the rule's slope, in place."""
        is_counted = labels != IGNORED_LABEL
        targets = labels.clamp(min=0)[:, None]
        log_sums = torch.logsumexp(scores, dim=-1, keepdim=True)
        losses = log_sums - scores.gather(1, targets)
        self.loss += torch.where(is_counted, losses[:, 0], 0.0).sum()
        if not self.needs_any:
            return
        slope = self.rule.slope(scores)
        scores.sub_(log_sums).exp_()
        scores.scatter_add_(1, targets, torch.full_like(log_sums, -1.0))
        scores.mul_((is_counted * KEPT_SCALE)[:, None]).mul_(slope)

    def _add_gradients(self, rows: slice, grad_logits: Tensor, xs: Sequence[Tensor]) -> None:
        bias_gradient, *flat = self.gradients
        if bias_gradient is not None:
            bias_gradient.add_(grad_logits.sum(0, dtype=torch.float32), alpha=self.weight_scale)
        for index, (x, weight) in enumerate(zip(xs, self.weights, strict=True)):
            x_gradient, weight_gradient = flat[2 * index], flat[2 * index + 1]
            if x_gradient is not None:
                x_gradient[rows] = grad_logits @ weight
            if weight_gradient is not None:
                self._add_weight_gradient(weight_gradient, grad_logits, x)

    def _add_weight_gradient(self, gradient: Tensor, grad_logits: Tensor, x: Tensor) -> None:
        """Add grad_logits.T @ x; where types differ, in slices of the vocabulary no larger than the chunk itself."""
        if gradient.dtype == self.dtype:
            gradient.addmm_(grad_logits.t(), x, alpha=self.weight_scale)
            return
        num_rows = max(1, grad_logits.numel() // x.shape[1])
        for some, grad_columns in zip(gradient.split(num_rows), grad_logits.split(num_rows, dim=1), strict=True):
            nothing = grad_columns.new_zeros(1)  # times beta = 0; alpha then scales before rounding
            some.add_(torch.addmm(nothing, grad_columns.t(), x, beta=0, alpha=self.weight_scale))
