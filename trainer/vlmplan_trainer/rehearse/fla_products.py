"""What the kernels of flash-linear-attention have in common: states, rows of unit length, and an operation that tells
how many FLOPs a kernel takes. Source: fla-core 0.6.0."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch import library as operators

CHUNK = 64
"""``chunk_size``, which transformers does not set."""
OPERATION = "vlmplan_rehearsal::kernel_products"
"""An operation that does nothing: it tells how many FLOPs a kernel takes (``flops``)."""

operators.define(OPERATION, "(Tensor x, int flops) -> ()")
operators.impl(OPERATION, "default", lambda x, flops: None)


def called_as_fla_does(rule: type[torch.autograd.Function]) -> Callable[..., tuple[Tensor, None]]:
    """The function of a package by which transformers calls ``rule``."""

    def chunked(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """(batch, tokens, heads, width), without a state that goes in or comes out."""
        assert use_qk_l2norm_in_kernel
        return rule.apply(query, key, value, g, beta), None

    return chunked


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """``l2norm_fwd``."""
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)


def states(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """``chunk_gated_delta_rule_fwd_h``: the state before each chunk, and the new values."""
    batch, num_tokens, num_heads, width = v.shape
    return k.new_empty(batch, -(-num_tokens // CHUNK), num_heads, k.shape[-1], width), torch.empty_like(v)


def count(k: Tensor, v: Tensor, *, passes: int) -> None:
    """The products of ``passes`` forwards: within a chunk of keys with keys, of queries with keys and of the solved
    matrix with keys, of that and of scores with values; three of a key with a state. Backward makes the states again
    and two gradients of each product."""
    keys, values = k.shape[-1], v.shape[-1]
    per_pair = CHUNK * (3 * keys + 2 * values) + 3 * keys * values
    torch.ops.vlmplan_rehearsal.kernel_products(k, 2 * passes * v[..., 0].numel() * per_pair)
