"""Fused attention of CUDA: which kernel a GPU would take, and the memory that torch's shape functions do not tell.

torch 2.13: ``aten/src/ATen/native/transformers/attention.cpp``, ``cuda/sdp_utils.cpp``,
``cuda/flash_attn/flash_api.cpp``, ``cuda/attention_backward.cu``.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import library as operators
from torch._meta_registrations import _create_grouped_mm_output_tensor

aten = torch.ops.aten
FLASH_TILE = 128
"""``mha_bwd`` rounds the tokens of its sums up to a multiple of this."""
FLASH_HEAD, WIDE_FLASH_HEAD = 32, 64
"""... and the width of a head to a multiple of the first, above ``FLASH_TILE`` of the second."""
EFFICIENT_ROWS, WIDE_EFFICIENT_ROWS, EFFICIENT_COLUMNS = 64, 128, 64
"""Rows of the memory-efficient kernel's tiles of dq, rows for heads wider than its columns, and these columns
(``fmha_cutlassB_bf16_aligned_64x64_k64`` and ``_128x64_k96`` in ``mem_eff_attention/kernels``)."""
LOCKS = 16
"""Bytes in front of such a tile (``GradQTempStorage`` in ``kernel_backward.h``)."""
FLASH_HEAD_LIMIT = 256
"""Widest head of the flash kernel (``check_head_dim_size_flash`` in ``sdp_utils.cpp``)."""
SMALL_FLASH_HEAD_LIMIT = 224
"""Widest head that trains where shared memory is small (8.6, 8.9, 12.x)."""
MASK_ALIGNMENT = 8
"""The memory-efficient kernel pads rows of a mask to a multiple of this (``preprocess_mask``)."""
GRADIENT_ALIGNMENT = 16
"""... and makes rows of a mask's gradient as wide as a multiple of this (``attention_backward.cu``)."""
UNSORTED_TOKENS = 3072
"""Up to so many the gradient of an embedding is made without sorting them (``embedding_dense_backward_cuda``)."""
ROWS_PER_THREAD = 10
"""Rows that a thread adds up there (``NROWS_PER_THREAD``)."""
NORM_PIECE = 65_536
"""Elements of a tensor whose squares one block of threads adds up (``kChunkSize`` in ``cuda/MultiTensorApply.cuh``)."""

FUSED_RMS_NORM = ("_fused_rms_norm", "_fused_rms_norm_backward")
"""What ``F.rms_norm`` is on CUDA, and its gradient."""
ONE_KERNEL_ON_CUDA = ("silu_backward", "mish_backward", *FUSED_RMS_NORM)
"""Operations that torch takes apart (``CompositeImplicitAutograd``) where a device has no kernel of its own."""


_capabilities: list[tuple[int, int]] = []
"""Of the card that attention is registered for: torch's registry is the process's, and so is this."""


_fallbacks: list[Tensor] = []
"""Queries of torch's own attention, where no fused kernel runs: one while it does."""


def masks_in_place(mask: Any) -> bool:
    """Whether what is added now is the mask of that attention, without a gradient: it is added to the scores in place,
    unless a mode such as this one watches (``areAnyTensorSubclassLike`` in ``attention.cpp``)."""
    return bool(_fallbacks) and isinstance(mask, Tensor) and not mask.requires_grad


def register(capability: tuple[int, int], *, backend: str = "PrivateUse1") -> None:
    """``scaled_dot_product_attention`` of the device chooses as a card of this compute capability does; ``backend`` is
    torch's dispatch key of the device."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        is_grouped = key.shape[1] != query.shape[1]
        # Fewer heads of keys are for a kernel that is told so (``check_batch_size_and_num_heads_dense``).
        is_flash = runs_flash(capability, query, value, attn_mask) and (enable_gqa or not is_grouped)
        # No fused kernel takes what lies apart in its last dimension (``check_last_dim_stride_equals_1_dense``).
        is_apart = any(one is not None and one.stride(-1) != 1 for one in (query, key, value, attn_mask))
        # Before 8.0 none takes bf16 (``less_than_sm80_mem_efficient_dtypes``).
        is_emulated = capability < (8, 0) and query.dtype == torch.bfloat16
        if (not is_flash and is_grouped) or is_apart or is_emulated:
            mask = None if attn_mask is None else _numbers(attn_mask, query)
            _fallbacks.append(query)
            try:
                return aten._scaled_dot_product_attention_math(
                    query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )[0]
            finally:
                _fallbacks.pop()
        bias = None if attn_mask is None else _bias(attn_mask, query)
        fused = aten._scaled_dot_product_fused_attention_overrideable
        return fused(query, key, value, bias, dropout_p, is_causal, False, scale=scale)[0]

    _capabilities.append(capability)
    keys = (backend, f"Autograd{backend}")
    operators.impl("aten::scaled_dot_product_attention", keys, attention)
    for name, kernel in (("softmax.int", aten._softmax), ("log_softmax.int", aten._log_softmax)):
        operators.impl(f"aten::{name}", keys, _casting_inside(kernel))
    never_taken_apart(ONE_KERNEL_ON_CUDA, backend)


def never_taken_apart(names: Iterable[str], backend: str) -> None:
    """Operations of these names are one kernel of the ``backend`` each."""
    for name in names:
        operators.impl(f"aten::{name}", backend, _never_run)


def _casting_inside(kernel: Any) -> Callable[..., Tensor]:
    """Float16 to float32 is done by CUDA's kernel itself (``softmax`` in ``SoftMax.cpp``)."""

    def softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        is_inside = scores.dtype == torch.float16 and dtype == torch.float32
        return kernel(scores if is_inside or dtype is None else scores.to(dtype), dim, is_inside)

    return softmax


def _never_run(*args: Any) -> Any:
    """That there is a kernel is enough: fake tensors ask for shapes before it is reached."""
    raise AssertionError("fake tensors run no kernel")


def runs_flash(capability: tuple[int, int], query: Tensor, value: Tensor, attn_mask: Tensor | None) -> bool:
    """``can_use_flash_attention``: compute capability 8.0, 16 bits, no mask, heads that fit, values as wide as keys."""
    if value.shape[-1] != query.shape[-1]:
        return False
    is_small = capability in ((8, 6), (8, 9)) or capability[0] == 12
    limit = SMALL_FLASH_HEAD_LIMIT if is_small else FLASH_HEAD_LIMIT
    is_16_bit = query.dtype in (torch.bfloat16, torch.float16)
    return capability >= (8, 0) and is_16_bit and attn_mask is None and query.shape[-1] <= limit


def _numbers(mask: Tensor, query: Tensor) -> Tensor:
    """``convert_boolean_attn_mask``, whatever the kernel; it makes nothing as large as the mask but its result."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=mask.device))


def _bias(mask: Tensor, query: Tensor) -> Tensor:
    """The mask in numbers, and ``pad_bias``."""
    bias = _numbers(mask, query)
    missing = -bias.shape[-1] % MASK_ALIGNMENT
    if missing:
        bias = torch.nn.functional.pad(bias, (0, missing))[..., : mask.shape[-1]]
    return bias.expand(query.shape[0], query.shape[1], query.shape[2], mask.shape[-1])


# -- kernels: (result, bytes that are taken while they run) -----------------------------------------------------------

Result = tuple[Any, list[int]]


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Result:
    batch, heads, tokens, _ = query.shape
    out = torch.empty_like(query)
    if not runs_flash(_capabilities[-1], query, value, bias):  # the memory-efficient kernel's lies token after token
        out = query.new_empty((batch, tokens, heads, value.shape[-1])).transpose(1, 2)
    sums = query.new_empty((batch, heads, tokens), dtype=torch.float32)
    seed, offset = query.new_empty((2,), dtype=torch.int64), query.new_empty((), dtype=torch.int64)
    return (out, sums, None, None, tokens, key.shape[2], seed, offset, query.new_empty((0,))), []


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    needs: tuple[bool, bool, bool, bool],
    *args: Any,
    **kwargs: Any,
) -> Result:
    """dq, dk, dv, and of a bias that needs one its own.

    While it runs: dq added up in float32, a sum per row, and for grouped heads dk and dv of every head of the queries.
    """
    batch, heads, tokens, head_dim = query.shape
    grad_bias = None
    if needs[3] and bias is not None:
        width = -(-bias.shape[-1] // GRADIENT_ALIGNMENT) * GRADIENT_ALIGNMENT
        grad_bias = bias.new_empty((*bias.shape[:-1], width))[..., : bias.shape[-1]]
    grads = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), grad_bias)
    if not runs_flash(_capabilities[-1], query, value, bias):
        rows = EFFICIENT_ROWS if head_dim <= EFFICIENT_COLUMNS else WIDE_EFFICIENT_ROWS
        num_tiles = batch * heads * math.ceil(tokens / rows) * math.ceil(head_dim / EFFICIENT_COLUMNS)
        return grads, [4 * batch * heads * tokens, num_tiles * (LOCKS + 4 * rows * EFFICIENT_COLUMNS)]
    rows = -(-tokens // FLASH_TILE) * FLASH_TILE
    width = _rounded_width(head_dim)
    passing = [4 * batch * heads * rows, 4 * batch * heads * rows * width]
    if key.shape[1] != heads:
        passing += [batch * key.shape[2] * heads * head_dim * query.element_size()] * 2
    return grads, passing


def _rounded_width(head_dim: int) -> int:
    multiple = FLASH_HEAD if head_dim <= FLASH_TILE else WIDE_FLASH_HEAD
    return -(-head_dim // multiple) * multiple


def _varlen_forward(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Result:
    """(tokens, heads, head_dim) of sequences one behind the other: the result and a log-sum-exp per row."""
    tokens, heads, _ = query.shape
    sums = query.new_empty((heads, tokens), dtype=torch.float32)
    state, offset = query.new_empty((2,), dtype=torch.int64), query.new_empty((), dtype=torch.int64)
    return (torch.empty_like(query), sums, state, offset, query.new_empty((0,))), []


def _varlen_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor, ends: Tensor, *args: Any
) -> Result:
    """The same as ``_backward``; the sums have ``FLASH_TILE`` rows more for each sequence (``mha_varlen_bwd``)."""
    tokens, heads, head_dim = query.shape
    rows = tokens + FLASH_TILE * (ends.shape[0] - 1)
    width = _rounded_width(head_dim)
    passing = [4 * heads * rows, 4 * heads * rows * width]
    if key.shape[1] != heads:
        passing += [key.shape[0] * heads * head_dim * query.element_size()] * 2
    return (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)), passing


def _safe_softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Result:
    """The softmax, and while it runs, of each score whether it is masked (``_safe_softmax`` in ``attention.cpp``)."""
    return torch.empty_like(scores, dtype=dtype or scores.dtype), [scores.numel()]


def _log_of_summed_exponentials(scores: Tensor, dims: list[int], keepdim: bool = False) -> Result:
    """The result, and while it runs the exponentials of all scores less their largest (``logsumexp_out_impl``)."""
    wide = scores.dtype if scores.is_floating_point() else torch.get_default_dtype()
    result = scores.sum(dims, keepdim=keepdim, dtype=wide)
    return result, [] if scores.is_cpu else [scores.numel() * result.element_size()]


def _grouped_product(x: Tensor, weights: Tensor, ends: Tensor | None = None, *args: Any, **kwargs: Any) -> Result:
    """The product of experts. torch's own shape function takes bfloat16 alone; its kernels take other types too, in
    one product after the other (``_grouped_mm_fallback``), and transformers asks for bfloat16 in a compiler alone."""
    return _create_grouped_mm_output_tensor(x, weights, ends, kwargs.get("out_dtype")), []


KERNELS: dict[Any, Callable[..., Result]] = {
    aten._grouped_mm.default: _grouped_product,
    aten._scaled_dot_product_fused_attention_overrideable.default: _forward,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _backward,
    aten._flash_attention_forward.default: _varlen_forward,
    aten._flash_attention_backward.default: _varlen_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten.logsumexp.default: _log_of_summed_exponentials,
}

LAST_FIRST = frozenset({aten.native_dropout.default})
"""Operations whose kernels make their last result first: dropout its mask (``dropout_cuda`` in ``cuda/Dropout.cu``)."""


# -- bytes that CUDA takes while it runs what torch's shape functions tell the result of -------------------------------


def _in_softmax_backward(grad: Tensor, *args: Any) -> list[int]:
    """The product of the gradient and the result (``softmax_backward_cuda_out`` in ``cuda/SoftMax.cu``)."""
    return [grad.numel() * grad.element_size()]


def _in_log_softmax(x: Tensor, *args: Any) -> list[int]:
    """A copy of what does not lie in one piece (``host_softmax`` in ``cuda/SoftMax.cu``)."""
    return [] if x.is_contiguous() else [x.numel() * x.element_size()]


def _in_embedding_backward(grad: Tensor, ids: Tensor, num_weights: int, *args: Any) -> list[int]:
    """Of more than ``UNSORTED_TOKENS`` tokens: ids and places, sorted; where segments of equal ids begin, their numbers
    of pieces and the places of those; where a piece begins; and a row of float32 for each piece that there may be
    (``Embedding.cu``, ``EmbeddingBackwardKernel.cu``)."""
    tokens = ids.numel()
    if tokens <= UNSORTED_TOKENS:
        return []
    segments = min(tokens, num_weights)
    pieces = tokens // ROWS_PER_THREAD + segments
    numbers = [tokens, tokens, tokens, segments, segments, pieces]
    return [*(number * ids.element_size() for number in numbers), 4 * pieces * grad.shape[-1]]


def _in_masked_scatter(target: Tensor, *args: Any) -> list[int]:
    """The mask, written out for every element, and how many it has let through before (``masked_scatter__cuda`` in
    ``cuda/IndexKernel.cpp``, ``launch_masked_scatter_kernel``)."""
    return [target.numel(), 8 * target.numel()]


def _in_masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> list[int]:
    """``masked_select`` finds the places of all elements first, 8 bytes for each dimension. Of the mask, written out
    for that, counts what is larger than the result, which comes when it is gone (``nonzero`` in ``Nonzero.cu``)."""
    selected = math.prod(sizes)
    return [8 * grad.dim() * selected, max(0, grad.numel() - selected * grad.element_size())]


def _in_norms(tensors: Sequence[Tensor], *args: Any) -> list[int]:
    """A number for each piece of the largest tensor, as many again for every other one (``output_per_tensor`` in
    ``cuda/ForeachReduceOp.cu``)."""
    pieces = max(-(-tensor.numel() // NORM_PIECE) for tensor in tensors)
    return [len(tensors) * pieces * max(4, tensors[0].element_size())]


def _in_sum(x: Tensor, *args: Any, dtype: torch.dtype | None = None) -> list[int]:
    """Booleans and narrow integers in the type of their sum (``make_reduction`` in ``ReduceOpsUtils.h``)."""
    wide = dtype or torch.int64
    return [] if x.is_floating_point() or x.dtype is wide else [x.numel() * wide.itemsize]


PASSING: dict[Any, Callable[..., list[int]]] = {
    aten._foreach_norm.Scalar: _in_norms,
    aten._log_softmax.default: _in_log_softmax,
    aten._softmax_backward_data.default: _in_softmax_backward,
    aten.embedding_dense_backward.default: _in_embedding_backward,
    aten.masked_scatter.default: _in_masked_scatter,
    aten.masked_scatter_backward.default: _in_masked_scatter_backward,
    aten.sum.default: _in_sum,
    aten.sum.dim_IntList: _in_sum,
}
