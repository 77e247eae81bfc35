"""Reductions over a dimension, and the kernels that have one inside: layer norm and softmax."""

from collections.abc import Sequence

from vlmplan.architecture.ops.base import Grads, cast_weight, detached, only, to
from vlmplan.architecture.ops.elementwise import mul, power, shift, unary
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.architecture.trace import Kind
from vlmplan.units import DType


def mean_last(x: Tensor) -> Tensor:
    """``x.mean(-1, keepdim=True)``: saves nothing."""
    return mean(x, (*x.shape[:-1], 1))


def mean(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.mean(dim)`` of ``shape``: saves nothing."""
    tape = x.tape
    node = tape.node((x,), _expanded_backward, meta=x.shape)
    out = tape.tensor(shape, x.dtype, node)
    tape.move(x.num_bytes)
    return out


def _expanded_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    # The expanded gradient is divided by the number of elements: one full tensor.
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(out.num_bytes)
    return (out,)


def weightless_rms_norm(x: Tensor) -> Tensor:
    """``x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)`` as a function of its own (``_norm`` of transformers):
    x, cast for this call, goes when it returns unless it is saved."""
    variance = mean_last(power(x))
    return mul(x, unary(shift(variance), saves_output=True))


def maximum_last(x: Tensor) -> Tensor:
    """``x.max(-1, keepdim=True).values``: saves the indices; its gradient is zeros of x's size, g put into them."""
    tape = x.tape
    node = tape.node((x,), _expanded_backward, meta=x.shape)
    shape = (*x.shape[:-1], 1)
    values, indices = tape.tensor(shape, x.dtype, node), tape.tensor(shape, DType.INT64)
    tape.save(node, indices)
    tape.move(x.num_bytes)
    return values


def total(x: Tensor, shape: tuple[int, ...], dtype: DType | None = None) -> Tensor:
    """``x.sum(dim, dtype=dtype)`` of ``shape``: saves nothing; its gradient is g, expanded, and cast to x's type."""
    tape = x.tape
    node = tape.node((x,), _total_backward, meta=(x.shape, x.dtype))
    out = tape.tensor(shape, dtype or x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _total_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    shape, dtype = node.meta
    return (to(Tensor(g.storage, shape, g.dtype), dtype),)


def layer_norm(x: Tensor, weight: Operand | None, bias: Operand | None, *, autocasts: bool = True) -> Tensor:
    """``F.layer_norm``: one kernel; saves x, the fp32 mean and reciprocal deviation per row, and the weight if any.

    Autocast runs it in float32 (``torch/amp`` op lists), unless it is off here: not ``autocasts``.
    """
    tape, given = x.tape, x  # whoever calls torch holds what is given until the result is there
    if tape.autocast is not None and autocasts:
        bias = None if bias is None else cast_weight(bias, DType.FLOAT32, tape)
        weight = None if weight is None else cast_weight(weight, DType.FLOAT32, tape)
        x = to(given, DType.FLOAT32)
    node = tape.node(
        (x, weight, bias),
        _layer_norm_backward,
        (x.detached(), None if weight is None else detached(weight)),
        (x.shape, x.dtype),
    )
    out = tape.tensor(x.shape, x.dtype, node)
    rows = x.numel // x.shape[-1]
    mean, rstd = tape.tensor((rows,), DType.FLOAT32), tape.tensor((rows,), DType.FLOAT32)
    tape.save(node, mean, rstd)
    tape.move(2 * x.num_bytes)
    return out


def _layer_norm_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    shape, dtype = node.meta
    tape = g.tape
    grad_x = tape.tensor(shape, dtype) if node.needs[0] else None
    tape.move(4 * g.num_bytes)
    width = shape[-1:]
    grad_weight = tape.tensor(width, dtype) if node.needs[1] else None
    grad_bias = tape.tensor(width, dtype) if node.needs[2] else None
    return (grad_x, grad_weight, grad_bias)


def grouped_norm(x: Tensor, weight: Operand | None, bias: Operand | None, num_groups: int) -> Tensor:
    """``F.group_norm`` and ``F.batch_norm``: one kernel; saves x, the weight, and a mean and a deviation for each of
    ``num_groups``."""
    tape = x.tape
    node = tape.node(
        (x, weight, bias),
        _grouped_norm_backward,
        (x.detached(), None if weight is None else detached(weight)),
        (x.shape, x.dtype, weight and weight.shape),
    )
    out = tape.tensor(x.shape, x.dtype, node)
    tape.save(node, tape.tensor((num_groups,), DType.FLOAT32), tape.tensor((num_groups,), DType.FLOAT32))
    tape.move(2 * x.num_bytes)
    return out


def _grouped_norm_backward(node: GraphNode, grads: Grads) -> Grads:
    g = only(grads)
    shape, dtype, width = node.meta
    grad_x = g.tape.tensor(shape, dtype) if node.needs[0] else None
    g.tape.move(4 * g.num_bytes)
    return [grad_x, *(g.tape.tensor(width, dtype) if needed else None for needed in node.needs[1:])]


def rms_norm(x: Tensor) -> Tensor:
    """``F.rms_norm`` without a weight: on CUDA one kernel (``_fused_rms_norm``); saves x and a float32 factor per row.
    Autocast runs it in float32."""
    tape, given = x.tape, x
    if tape.autocast is not None:
        x = to(given, DType.FLOAT32)
    node = tape.node((x,), _rms_norm_backward, (x.detached(),))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.save(node, tape.tensor((x.numel // x.shape[-1],), DType.FLOAT32))
    tape.move(2 * x.num_bytes)
    return out


def _rms_norm_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    out = g.tape.tensor(g.shape, g.dtype)
    g.tape.move(3 * g.num_bytes)
    return (out,)


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """``F.softmax(x, dim=-1, dtype=dtype)``: saves its result; casts x first, in the same kernel only for float16.

    Without a ``dtype`` autocast asks for float32. Sources: ``softmax`` in ``aten/src/ATen/native/SoftMax.cpp``,
    ``AT_FORALL_FP32_SET_OPT_DTYPE`` in ``aten/src/ATen/autocast_mode.h``.
    """
    tape, given = x.tape, x  # whoever calls torch holds what is given until the result is there
    if dtype is None and tape.autocast is not None:
        dtype = DType.FLOAT32
    if dtype is not None and x.dtype is not DType.FLOAT16:
        x = to(given, dtype)
    node = tape.node((x,), _softmax_backward, meta=x.dtype)
    out = tape.tensor(x.shape, dtype or x.dtype, node)
    tape.save(node, out)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _softmax_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """CUDA multiplies the gradient by the result first, into a tensor of its own beside the gradient that it returns:
    ``softmax_backward_cuda_out`` in ``aten/src/ATen/native/cuda/SoftMax.cu``. ``log_softmax`` does not."""
    g = only(grads)
    tape = g.tape
    out = tape.tensor(g.shape, node.meta)
    with tape.charged_to(Kind.TEMPORARY):
        product = tape.tensor(g.shape, g.dtype)
    tape.move(2 * g.num_bytes + product.num_bytes)
    tape.move(g.num_bytes + product.num_bytes + out.num_bytes)
    return (out,)
