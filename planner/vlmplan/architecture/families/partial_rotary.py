"""Rotary positions on the first part of each head, halves rotated (``apply_rotary_pos_emb`` of GLM and Qwen3.5)."""

from vlmplan.architecture import ops
from vlmplan.architecture.tensor import Tensor


def partly_rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The rotated part, as wide as cos, and the rest of each head, however narrow, in new tensors."""
    width = cos.shape[-1]
    rest = q.shape[-1] - width
    q_part, q_rest = ops.slice_last(q, width), ops.slice_last(q, rest)
    k_part, k_rest = ops.slice_last(k, width), ops.slice_last(k, rest)
    q_rotated = ops.rotate(q_part, cos, sin)
    k_rotated = ops.rotate(k_part, cos, sin)
    q_rotated = ops.concatenate([q_rotated, q_rest], q.shape)
    k_rotated = ops.concatenate([k_rotated, k_rest], k.shape)
    return q_rotated, k_rotated


def parts_of_heads(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first ``width`` of each head, which are rotated, and the rest, where a layer keeps both in variables of its
    own (StableLM, Phi). A slice of everything is x itself, without an operation of its own."""
    rest = x.shape[-1] - width
    return ops.slice_last(x, width) if rest else x, ops.slice_last(x, rest)
