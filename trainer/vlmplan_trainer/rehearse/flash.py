"""The package flash-attn, which is compiled for a card: its functions as torch's own flash kernel has them.

Both are Tri Dao's kernel; they keep the same tensors (q, k, v, the result, a log-sum-exp per row) and take the same
memory while they run. flash-attn's q is (batch, tokens, heads, head_dim), torch's (batch, heads, tokens, head_dim).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Parameters are flash-attn 2.8's: transformers looks at their names."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    return attention(*heads_first, None, dropout_p, causal, False, scale=softmax_scale)[0].transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Tensor:
    """Sequences one behind the other, (tokens, heads, head_dim).

    torch's own operations of this kind keep and take the same, and their FLOPs are of each sequence by itself.
    """
    return _Varlen.apply(q, k, v, cu_seqlens_q, max_seqlen_q, dropout_p, causal)


class _Varlen(torch.autograd.Function):
    """``FlashAttnVarlenFunc``: keeps q, k, v, the result, the log-sum-exps and the lengths."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, dropout: float, causal: bool
    ) -> Tensor:
        ctx.settings = (int(longest), int(longest), dropout, causal)
        attention = torch.ops.aten._flash_attention_forward
        out, sums, state, unused, _ = attention(q, k, v, ends, ends, *ctx.settings, False)
        ctx.save_for_backward(q, k, v, out, sums, ends, state, unused)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums, ends, state, unused = ctx.saved_tensors
        attention = torch.ops.aten._flash_attention_backward
        grads = attention(grad, q, k, v, out, sums, ends, ends, *ctx.settings, state, unused)
        return (*grads, None, None, None, None)


@contextmanager
def flash_attention_from_torch() -> Iterator[None]:
    """transformers refuses ``flash_attention_2`` where the package and a CUDA card are not there; Falcon and GPT-J
    import what calls it only where the package is found when their files are read."""
    import transformers.modeling_flash_attention_utils as utils
    from transformers import PreTrainedModel

    from vlmplan_trainer.rehearse.shims import replaced

    functions = (flash_attn_func, flash_attn_varlen_func, None, utils._pad_input, utils._unpad_input)
    with (
        replaced(PreTrainedModel, "_flash_attn_can_dispatch", lambda *args, **kwargs: True),
        replaced(utils, "_lazy_imports", lambda *args, **kwargs: functions),
        replaced(utils, "is_flash_attn_available", lambda *args, **kwargs: True),
    ):
        yield
