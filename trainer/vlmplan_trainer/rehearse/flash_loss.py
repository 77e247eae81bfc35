"""flash-attn's cross-entropy, whose kernels are Triton's and fill what they are given: its tensors without them.

Sources: flash-attn 2.8.3 ``flash_attn/ops/triton/cross_entropy.py`` (``CrossEntropyLoss``: losses, their logarithms of
sums and losses of z in float32, a number a row; it keeps the logits, and its gradient is another tensor as large unless
``inplace_backward``) and ``flash_attn/utils/distributed.py`` (``AllGatherFunc``).
"""

from typing import Any

import torch
from torch import Tensor


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, in_place: bool) -> tuple[Tensor, Tensor]:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        losses, sums, z_losses = (logits.new_zeros(len(logits), dtype=torch.float32) for _ in range(3))
        ctx.save_for_backward(logits, sums, labels)
        ctx.mark_non_differentiable(z_losses)
        ctx.in_place = in_place
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        logits = ctx.saved_tensors[0]
        return (logits if ctx.in_place else torch.empty_like(logits)), None, None


def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[Tensor, Tensor]:
    """The losses of ``logits`` (rows, words) and those of z, both float32 of (rows,). Raises NotImplementedError for
    words that several ranks share."""
    if process_group is not None:
        raise NotImplementedError("flash-attn's cross-entropy of words that ranks share is not rehearsed")
    return _CrossEntropy.apply(logits, labels, inplace_backward)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: Any) -> Tensor:
        ctx.group, num_ranks = group, torch.distributed.get_world_size(group)
        gathered = own.new_empty((num_ranks * own.shape[0], *own.shape[1:]))
        torch.distributed.all_gather_into_tensor(gathered, own.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        num_ranks = torch.distributed.get_world_size(ctx.group)
        part = grads[0].new_empty((grads[0].shape[0] // num_ranks, *grads[0].shape[1:]))
        torch.distributed.reduce_scatter_tensor(part, grads[0].contiguous(), group=ctx.group)
        return part, None


def all_gather(own: Tensor, group: Any) -> Tensor:
    """The parts of all ranks of ``group``, one behind the other; its gradient is scattered again."""
    return _AllGather.apply(own, group)
