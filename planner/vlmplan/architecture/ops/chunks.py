"""Operations of linear attention in chunks: what a loop over slices of one tensor is made of.

Sources: torch 2.13 ``tools/autograd/derivatives.yaml`` and the functions that it names in
``torch/csrc/autograd/FunctionsManual.cpp``; ``torch/csrc/autograd/functions/tensor.cpp`` for writing into a slice.
"""

from collections.abc import Sequence
from math import prod

from vlmplan.architecture.ops.base import (
    Grads,
    cast_weight,
    detached,
    new_of_same_shape,
    only,
    promoted,
    reduced,
    summed_backward,
    to,
)
from vlmplan.architecture.ops.elementwise import unary
from vlmplan.architecture.ops.layout import part
from vlmplan.architecture.ops.matmuls import matmul
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.units import DType


def product(x: Tensor, y: Tensor, shape: tuple[int, ...], inner: int) -> Tensor:
    """``x @ y`` as ``matmul``; under autocast of operands that are cast first."""
    autocast = x.tape.autocast
    if autocast is None:
        return matmul(x, y, shape, inner)
    second = to(y, autocast)  # the last argument first (``matmuls``)
    return matmul(to(x, autocast), second, shape, inner)


def difference(x: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x - y``, both broadcast to ``shape``: saves nothing; y's gradient is a product, and both are summed."""
    tape = x.tape
    node = tape.node((x, y), _difference_backward, meta=(x.shape, y.shape, x.dtype, y.dtype))
    out = tape.tensor(shape, promoted(x.dtype, y.dtype), node)
    tape.move(x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _difference_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Both gradients are there before the first is summed (``validate_outputs`` in ``engine.cpp``)."""
    g = only(grads)
    x_shape, y_shape, x_dtype, y_dtype = node.meta
    grad_x = g if node.needs[0] else None
    grad_y = None
    if node.needs[1]:
        grad_y = g.tape.tensor(g.shape, g.dtype)
        g.tape.move(2 * g.num_bytes)
    if grad_x is not None:
        grad_x = to(g if prod(x_shape) == g.numel else reduced(g, x_shape, g.dtype), x_dtype)
    if grad_y is not None:
        grad_y = to(grad_y if prod(y_shape) == g.numel else reduced(grad_y, y_shape, g.dtype), y_dtype)
    return (grad_x, grad_y)


def outer_sum(x: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x + y``, both broadcast to ``shape``: saves nothing; both gradients are g, summed."""
    tape = x.tape
    node = tape.node((x, y), _outer_sum_backward, meta=(x.shape, y.shape))
    out = tape.tensor(shape, promoted(x.dtype, y.dtype), node)
    tape.move(x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _outer_sum_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    return [reduced(g, shape, g.dtype) if needed else None for shape, needed in zip(node.meta, node.needs, strict=True)]


def outer(x: Tensor, y: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x * y``, each of ``shape`` or broadcast to it: saves each if the other needs a gradient; gradients of what was
    broadcast are summed."""
    tape = x.tape
    saved = (x.detached() if y.requires_grad else None, y.detached() if x.requires_grad else None)
    node = tape.node((x, y), _outer_backward, saved, ((x.shape, x.dtype), (y.shape, y.dtype), shape))
    out = tape.tensor(shape, promoted(x.dtype, y.dtype), node)
    tape.move(x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _outer_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """Both gradients are there before the first is summed or cast (``validate_outputs`` in ``engine.cpp``)."""
    g = only(grads)
    *operands, shape = node.meta
    tape = g.tape
    wide = [tape.tensor(shape, g.dtype) if needed else None for needed in node.needs]
    tape.move(3 * g.num_bytes, num_kernels=2)
    if tape.frees_saved:
        node.saved = ()
    result: list[Tensor | None] = []
    for index, (own, dtype) in enumerate(operands):
        grad = wide[index]
        wide[index] = None
        if grad is not None and own != shape:
            grad = reduced(grad, own, g.dtype)
        result.append(grad and to(grad, dtype))
        del grad
    return result


def divide(x: Tensor, y: Tensor) -> Tensor:
    """``x / y`` with y (..., 1): saves both. The gradient of y is ``-g * ((x / y) / y)``, of x's size before it is
    summed; what it is made of goes when it is whole (``div_tensor_other_backward``)."""
    tape = x.tape
    saved = (x.detached(), y.detached()) if x.requires_grad or y.requires_grad else ()
    node = tape.node((x, y), _divide_backward, saved, y.shape)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def _divide_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    tape = g.tape
    parts = [tape.tensor(g.shape, g.dtype) for _ in range(3)]
    grad_y = tape.tensor(g.shape, g.dtype)
    tape.move(8 * g.num_bytes, num_kernels=4)
    parts.clear()
    grad_x = tape.tensor(g.shape, g.dtype)
    tape.move(2 * g.num_bytes)
    if tape.frees_saved:
        node.saved = ()
    return (grad_x if node.needs[0] else None, reduced(grad_y, node.meta, g.dtype) if node.needs[1] else None)


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """``x.masked_fill(mask, number)``: saves the mask; its gradient is another masked copy."""
    tape = x.tape
    node = tape.node((x,), new_of_same_shape, (mask.detached(),))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def exponential(x: Tensor) -> Tensor:
    """``x.exp()``: saves the result."""
    return unary(x, saves_output=True)


def remaining_decay(cum_decay: Tensor) -> Tensor:
    """``(cum_decay[..., -1:] - cum_decay).exp()``: the decay from each token to the end of its chunk."""
    last = part(cum_decay, *cum_decay.shape[:-1], 1)
    return exponential(difference(last, cum_decay, cum_decay.shape))


def cumulative_sum(x: Tensor) -> Tensor:
    """``x.cumsum(dim)``: saves nothing; its gradient is flipped, summed up and flipped again (``cumsum_backward``)."""
    tape = x.tape
    node = tape.node((x,), _cumulative_sum_backward)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def _cumulative_sum_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    tape = g.tape
    flipped = tape.tensor(g.shape, g.dtype)
    summed = tape.tensor(g.shape, g.dtype)
    out = tape.tensor(g.shape, g.dtype)
    del flipped, summed
    tape.move(6 * g.num_bytes, num_kernels=3)
    return (out,)


def pad(x: Tensor, *shape: int) -> Tensor:
    """``F.pad(x, ...)`` to ``shape``: a copy even where nothing is added; its gradient is cut out, and copied too.

    Source: ``constant_pad_nd`` in ``aten/src/ATen/native/PadNd.cpp`` (it clones where no padding is above zero).
    """
    tape = x.tape
    node = tape.node((x,), _pad_backward, meta=x.shape)
    out = tape.tensor(shape, x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _pad_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(2 * out.num_bytes)
    return (out,)


def repeat_heads(x: Tensor, *shape: int) -> Tensor:
    """``x.repeat_interleave(count, dim)`` of ``shape``: a copy; saves nothing; its gradient is summed over the copies.

    Source: ``repeat_interleave_symint`` in ``aten/src/ATen/native/Repeat.cpp`` (expand, clone, flatten).
    """
    tape = x.tape
    node = tape.node((x,), summed_backward, meta=x.shape)
    out = tape.tensor(shape, x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def solve_triangular(matrix: Tensor, x: Tensor) -> Tensor:
    """``torch.linalg.solve_triangular(matrix, x, upper=False)``: saves the matrix and the result.

    Shapes: matrix (..., n, n), x and the result (..., n, m); n**2 * m operations a system. Neither is copied for the
    kernel: a contiguous matrix is read as its transpose (``linalg_solve_triangular_out`` in
    ``aten/src/ATen/native/BatchLinearAlgebra.cpp``).
    """
    tape = x.tape
    saves = matrix.requires_grad or x.requires_grad
    node = tape.node((matrix, x), _solve_backward, (matrix.detached(),) if saves else (), (matrix.shape, x.shape))
    out = tape.tensor(x.shape, x.dtype, node)
    tape.save(node, out)
    tape.matmul(x.numel * matrix.shape[-1], matrix.num_bytes + x.num_bytes + out.num_bytes, x.dtype)
    return out


def _solve_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """``linalg_solve_triangular_backward``: another system for x, and for the matrix a product, negated and cut."""
    g = only(grads)
    matrix_shape, x_shape = node.meta
    tape, rows = g.tape, matrix_shape[-1]
    grad_x = tape.tensor(x_shape, g.dtype)
    tape.matmul(g.numel * rows, prod(matrix_shape) * g.dtype.num_bytes + 2 * g.num_bytes, g.dtype)
    grad_matrix = None
    if node.needs[0]:
        outer = tape.tensor(matrix_shape, g.dtype)
        tape.matmul(2 * g.numel * rows, 2 * g.num_bytes + outer.num_bytes, g.dtype)
        negated = tape.tensor(matrix_shape, g.dtype)
        del outer
        grad_matrix = tape.tensor(matrix_shape, g.dtype)
        tape.move(4 * grad_matrix.num_bytes, num_kernels=2)
        del negated
    return (grad_matrix, grad_x if node.needs[1] else None)


def select(x: Tensor, *shape: int) -> Tensor:
    """``x[:, :, i]`` of ``shape``: a view; its gradient is put into zeros of x's whole size (``select_backward``)."""
    node = x.tape.node((x,), _select_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, shape, x.dtype, node)


def _select_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    out = g.tape.tensor(*node.meta)
    g.tape.move(out.num_bytes + 2 * g.num_bytes, num_kernels=2)
    return (out,)


def put_slice(base: Tensor, part: Tensor) -> Tensor:
    """``base[:, :, i] = part`` in place: saves nothing; the result is base's storage, and replaces ``base``.

    Its gradient is copied whole, the part's cut out of the copy, and zeros are put in its place (``CopySlices`` in
    ``torch/csrc/autograd/functions/tensor.cpp``, ``CopyBackwards``).
    """
    tape = base.tape
    node = tape.node((base, part), _put_slice_backward, meta=(part.shape, part.dtype))
    tape.move(2 * part.num_bytes)
    return Tensor(base.storage, base.shape, base.dtype, node)


def _put_slice_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    tape = g.tape
    shape, dtype = node.meta
    whole = tape.tensor(g.shape, g.dtype)
    part = tape.tensor(shape, g.dtype)
    tape.move(2 * g.num_bytes + 2 * part.num_bytes, num_kernels=2)
    if not node.needs[0]:
        return (None, to(part, dtype))
    zeros = tape.tensor(shape, g.dtype)
    tape.move(3 * zeros.num_bytes, num_kernels=2)
    part = to(part, dtype)
    del zeros
    return (whole, part)


def causal_convolution(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """``F.conv1d(x, weight, bias, padding=k - 1, groups=channels)[:, :, :tokens]``: saves x and the weight.

    Shapes: x and the result (batch, channels, tokens), weight (channels, 1, k). The result is a slice of k - 1 more
    tokens, and its gradient is written into a tensor of all of them.
    """
    tape, given = x.tape, x  # whoever calls torch holds what is given until the result is there
    weight_operand: Operand = weight
    if tape.autocast is not None:
        weight_operand = cast_weight(weight, tape.autocast, tape)
        x = to(given, tape.autocast)
    batch, channels, num_tokens = x.shape
    taps = weight.shape[-1]
    # Both are saved whichever gradient is needed (``convolution`` in derivatives.yaml).
    saved = (x.detached(), detached(weight_operand))
    view_of = weight if weight_operand is weight else None
    meta = (x.shape, weight.shape, x.dtype)
    node = tape.node((x, weight_operand, bias), _causal_convolution_backward, saved, meta, view_of)
    out = tape.tensor((batch, channels, num_tokens + taps - 1), x.dtype, node)
    tape.matmul(2 * out.numel * taps, x.num_bytes + out.num_bytes, x.dtype)
    slice_node = tape.node((out,), _pad_backward, meta=out.shape)
    return Tensor(out.storage, x.shape, x.dtype, slice_node)


def _causal_convolution_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    x_shape, weight_shape, dtype = node.meta
    tape = g.tape
    flops = 2 * g.numel * weight_shape[-1]
    grad_x = grad_weight = grad_bias = None
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, dtype)
        tape.matmul(flops, 2 * g.num_bytes, dtype)
    if node.needs[1]:
        grad_weight = tape.gradient(weight_shape, dtype)
        tape.matmul(flops, 2 * g.num_bytes, dtype)
    if node.needs[2]:
        grad_bias = reduced(g, weight_shape[:1], dtype)
    return (grad_x, grad_weight, grad_bias)


def zeros(x: Tensor, *shape: int) -> Tensor:
    """``torch.zeros(shape)`` in float32, where x is."""
    out = x.tape.tensor(shape, DType.FLOAT32)
    x.tape.move(out.num_bytes)
    return out
