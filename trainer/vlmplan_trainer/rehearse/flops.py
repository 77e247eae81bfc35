"""FLOPs of the operations that torch's own counter does not know: attention of a backend, products with packed weights,
products of groups of rows, which are those of experts, products that are added to what is there, and triangular
systems. The backward of a convolution in groups it counts as if there were one.

As ``torch.utils.flop_counter`` counts: two for each multiplication with its addition, causal attention in full, and
backward of attention with its scores computed anew.
"""

from collections.abc import Callable
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.flop_counter import flop_registry

from vlmplan_trainer.rehearse.values import value_of

aten = torch.ops.aten
Formula = Callable[..., int]


def attention_forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """(batch, heads, tokens, head_dim). Scores, then their product with the values, for every head of the queries."""
    batch, heads, tokens, head_dim = query.shape
    pairs = batch * heads * tokens * key.shape[-2]
    return 2 * pairs * (head_dim + value.shape[-1])


def attention_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """Scores anew, gradients of queries and keys from theirs; gradients of scores and of values."""
    batch, heads, tokens, head_dim = query.shape
    pairs = batch * heads * tokens * key.shape[-2]
    return 2 * pairs * (3 * head_dim + 2 * value.shape[-1])


def varlen_forward(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, *args: Any, **kwargs: Any) -> int:
    """(tokens, heads, head_dim). The same, of each sequence that lies between two of the ``ends`` by itself."""
    return 2 * query.shape[1] * _num_pairs(ends, len(query)) * (query.shape[2] + value.shape[2])


def varlen_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> int:
    """FLOPs of each sequence by itself; behind the result and the log-sum-exps there are the ``ends``."""
    ends = args[2]
    return 2 * query.shape[1] * _num_pairs(ends, len(query)) * (3 * query.shape[2] + 2 * value.shape[2])


def _num_pairs(ends: Tensor, num_tokens: int) -> int:
    """Pairs of tokens of a sequence. Lengths of fake sequences come of the batch, or of the patches of its images;
    where a script leaves them unknown, all tokens are one sequence."""
    known = value_of(ends)
    if known is None:
        return num_tokens**2
    with unset_fake_temporarily():
        places = known.tolist()
    return sum((end - start) ** 2 for start, end in pairwise(places))


def convolution_backward(grad: Tensor, inputs: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> int:
    """FLOPs of backward: as many as forward for the gradient of the input, and for that of the weight: each element of
    the result comes of all weights of its channel. Without groups as torch counts."""
    transposed, groups, output_mask = args[4], args[6], args[7]
    if groups == 1 or transposed:
        return flop_registry[aten.convolution_backward](grad, inputs, weight, *args, **kwargs)
    return sum(output_mask[:2]) * 2 * grad.numel() * weight[0].numel()


def triangular_solution(matrix: Tensor, right: Tensor, **kwargs: Any) -> int:
    """Of triangular systems, (..., n, n) and (..., n, m): in each every element of the result takes those before it in
    its column, n / 2 multiplications with their additions (cuBLAS's ``trsm``). torch's counter leaves them out."""
    return right.numel() * matrix.shape[-1]


def packed_product(inputs: Tensor, packed: Tensor, shape: Any, *args: Any, **kwargs: Any) -> int:
    """(..., in) times a packed weight whose ``shape`` is (out, in)."""
    return 2 * inputs.numel() // inputs.shape[-1] * prod(shape)


def byte_product(inputs: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> int:
    """(..., in) times a weight of 8 bits, (out, in)."""
    return 2 * inputs.numel() * weight.shape[0]


def grouped_product(left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> int:
    """Products of groups of rows, columns or summands, each with a matrix of its own: (S, in) by (E, in, out) and
    (E, out, in) by (in, S) for experts forward, (out, S) by (S, in) for the gradient of their weights. Each of the S
    is in one group, so that it is counted once; three dimensions by three are a batched product.
    """
    num_batches = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return 2 * num_batches * left.shape[-2] * left.shape[-1] * right.shape[-1]


def grouped_fallback_backward(inputs: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> int:
    """Gradients of both inputs of transformers' own loop over the groups, each of as many as forward."""
    return 2 * 2 * inputs.numel() * weight.shape[-1]


def added_product(added: Tensor, left: Tensor, right: Tensor, *out_dtype: Any, **kwargs: Any) -> int:
    """``addmm`` with the element type of its result as a fourth argument, which torch's counter does not take."""
    return flop_registry[aten.addmm](added, left, right, **kwargs)


def added_batched_product(added: Tensor, left: Tensor, right: Tensor, *out_dtype: Any, **kwargs: Any) -> int:
    """FLOPs of ``baddbmm``."""
    return flop_registry[aten.baddbmm](added, left, right, **kwargs)


def told(x: Tensor, flops: int, **kwargs: Any) -> int:
    """What a kernel that torch does not see takes (``fla``)."""
    return flops


FORMULAS: dict[Any, Formula] = {
    aten._scaled_dot_product_fused_attention_overrideable: attention_forward,
    aten._scaled_dot_product_fused_attention_overrideable_backward: attention_backward,
    aten._flash_attention_forward: varlen_forward,
    aten._flash_attention_backward: varlen_backward,
    aten.convolution_backward: convolution_backward,
    aten.addmm: added_product,
    aten.baddbmm: added_batched_product,
    aten.addmm_: added_product,
    aten.baddbmm_: added_batched_product,
    aten._grouped_mm: grouped_product,
    aten.linalg_solve_triangular: triangular_solution,
}


BY_NAME: dict[str, Formula] = {
    "kernel_products": told,
    "gemm_4bit": packed_product,
    "gemv_4bit": packed_product,
    "int8_linear_matmul": byte_product,
    "grouped_mm_fallback": grouped_product,
    "grouped_mm_fallback_backward": grouped_fallback_backward,
}
"""Operations of bitsandbytes, of transformers for GPUs without ``_grouped_mm``, and of ``fla`` beside this, that are
registered with torch when those are imported."""


def formula_of(packet: Any) -> Formula | None:
    """How the FLOPs of an operation are counted, from its arguments; None for those that multiply no matrices."""
    return FORMULAS.get(packet) or flop_registry.get(packet) or BY_NAME.get(packet.__name__)
