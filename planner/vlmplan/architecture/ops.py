"""Operations on symbolic tensors: what each allocates, saves for backward, and computes.

Each function mirrors one torch operation (or one fused kernel) as eager PyTorch runs it on CUDA. The rules for saved
tensors are those of ``tools/autograd/derivatives.yaml`` in torch 2.13; the docstrings give them in one line, because
they are the memory model. ``g`` is the incoming gradient.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from vlmplan.architecture.tensor import Node, Operand, Parameter, Tensor, product
from vlmplan.errors import UnknownNameError
from vlmplan.units import DType

if TYPE_CHECKING:
    from vlmplan.architecture.tape import Tape

Grads = list[Tensor | None]


def needs_grad(operand: Operand | None) -> bool:
    return operand is not None and operand.requires_grad


def promoted(left: DType, right: DType) -> DType:
    """The result type of a binary operation on two tensors (torch's type promotion for the types used here)."""
    if left is right:
        return left
    if not right.is_floating:
        return left
    if not left.is_floating:
        return right
    return DType.FLOAT32  # float32 with a 16-bit type, or bfloat16 with float16


# -- casts and copies ------------------------------------------------------------------------------------------------


def to(x: Tensor, dtype: DType) -> Tensor:
    """``x.to(dtype)``: saves nothing; x itself where the type is the same already."""
    if x.dtype is dtype:
        return x
    tape = x.tape
    node = tape.node((x,), _cast_backward, meta=x.dtype)
    out = tape.tensor(x.shape, dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _cast_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    return (to(g, node.meta),)


def cast_weight(weight: Operand, dtype: DType, tape: "Tape") -> Operand:
    """A weight in the element type ``dtype``: itself, or a cast on ``tape`` (autocast, norms in float32)."""
    if weight.dtype is dtype:
        return weight
    if isinstance(weight, Tensor):
        return to(weight, dtype)
    node = tape.node((weight,), _cast_backward, meta=weight.dtype)
    out = tape.tensor(weight.shape, dtype, node)
    tape.move(weight.num_bytes + out.num_bytes)
    return out


def copy(x: Tensor, *shape: int) -> Tensor:
    """``contiguous()`` or ``reshape()`` of a tensor whose layout forces a copy; saves nothing."""
    tape = x.tape
    node = tape.node((x,), _pass_through)
    out = tape.tensor(shape or x.shape, x.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _pass_through(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    return (g,)


# -- elementwise -----------------------------------------------------------------------------------------------------


def add(x: Tensor, y: Operand) -> Tensor:
    """``x + y``: saves nothing; both gradients are g itself where the types agree."""
    tape = x.tape
    dtype = promoted(x.dtype, y.dtype)
    node = tape.node((x, y), _add_backward, meta=(x.dtype, y.dtype, y.shape if y.numel != x.numel else None))
    out = tape.tensor(x.shape, dtype, node)
    tape.move(x.num_bytes + y.numel * y.dtype.num_bytes + out.num_bytes)
    return out


def _add_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x_dtype, y_dtype, y_shape = node.meta
    grad_y = None
    if node.needs[1]:
        grad_y = g if y_shape is None else reduced(g, y_shape, g.dtype)
        grad_y = to(grad_y, y_dtype)
    return (to(g, x_dtype) if node.needs[0] else None, grad_y)


def reduced(g: Tensor, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A gradient summed over broadcast dimensions."""
    out = g.tape.tensor(shape, dtype)
    g.tape.move(g.num_bytes + out.num_bytes)
    return out


def mul(x: Tensor, y: Operand) -> Tensor:
    """``x * y``: saves y if x needs a gradient, x if y does."""
    tape = x.tape
    saved = (x.detached() if y.requires_grad else None, _detached(y) if x.requires_grad else None)
    broadcasts = y.numel != x.numel
    node = tape.node((x, y), _mul_backward, saved, (x.dtype, y.dtype, x.shape, y.shape, broadcasts))
    out = tape.tensor(x.shape, promoted(x.dtype, y.dtype), node)
    tape.move(x.num_bytes + y.numel * y.dtype.num_bytes + out.num_bytes)
    return out


def _mul_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x_dtype, y_dtype, x_shape, y_shape, broadcasts = node.meta
    tape = g.tape
    grad_x = grad_y = None
    if node.needs[0]:
        product_x = tape.tensor(x_shape, g.dtype)
        tape.move(3 * g.num_bytes)
        grad_x = to(product_x, x_dtype)
        del product_x
    if node.needs[1]:
        product_y = tape.tensor(x_shape, g.dtype)
        tape.move(3 * g.num_bytes)
        if broadcasts:
            product_y = reduced(product_y, y_shape, g.dtype)
        grad_y = to(product_y, y_dtype)
    return (grad_x, grad_y)


def _detached(operand: Operand) -> Operand:
    return operand if isinstance(operand, Parameter) else operand.detached()


def scale(x: Tensor) -> Tensor:
    """``x * number``, ``-x``, ``x + number``: saves nothing; its gradient is a new tensor for a product."""
    tape = x.tape
    node = tape.node((x,), _unary_backward)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def shift(x: Tensor) -> Tensor:
    """``x + number``: saves nothing; its gradient is g."""
    tape = x.tape
    node = tape.node((x,), _pass_through)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def unary(x: Tensor, *, saves_input: bool = False, saves_output: bool = False) -> Tensor:
    """An elementwise function of one tensor that saves its input (silu), its output (tanh, sigmoid) or neither."""
    tape = x.tape
    node = tape.node((x,), _unary_backward, (x.detached(),) if saves_input and x.requires_grad else ())
    out = tape.tensor(x.shape, x.dtype, node)
    if saves_output:
        tape.save(node, out)
    tape.move(2 * x.num_bytes)
    return out


def _unary_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    out = g.tape.tensor(g.shape, g.dtype)
    g.tape.move(g.num_bytes * (2 + (1 if node.saved else 0)))
    return (out,)


def power(x: Tensor) -> Tensor:
    """``x.pow(number)``: saves x; backward writes ``x.pow(number - 1)``, a multiple of it, and the product with g."""
    tape = x.tape
    node = tape.node((x,), _power_backward, (x.detached(),) if x.requires_grad else ())
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def _power_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    tape = g.tape
    derivative = tape.tensor(g.shape, g.dtype)
    multiple = tape.tensor(g.shape, g.dtype)
    out = tape.tensor(g.shape, g.dtype)
    tape.move(7 * g.num_bytes)
    del derivative, multiple
    return (out,)


def silu(x: Tensor) -> Tensor:
    """``F.silu``: saves x."""
    return unary(x, saves_input=True)


def gelu(x: Tensor) -> Tensor:
    """``F.gelu``, exact or tanh approximation: saves x."""
    return unary(x, saves_input=True)


def relu(x: Tensor) -> Tensor:
    """``F.relu``: saves its result."""
    return unary(x, saves_output=True)


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh``: saves its result."""
    return unary(x, saves_output=True)


def sigmoid(x: Tensor) -> Tensor:
    """``torch.sigmoid``: saves its result."""
    return unary(x, saves_output=True)


def dropout(x: Tensor, probability: float) -> Tensor:
    """``F.dropout`` in training: saves its mask, one byte an element on CUDA; x itself where nothing is dropped.

    The CPU kernel instead multiplies by noise of x's type (``aten/src/ATen/native/Dropout.cpp``).
    """
    if probability == 0:
        return x
    tape = x.tape
    node = tape.node((x,), _unary_backward)
    mask = tape.tensor(x.shape, DType.BOOL if tape.fuses_dropout else x.dtype)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.save(node, mask)
    tape.move(2 * x.num_bytes + mask.num_bytes)
    return out


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 * x)`` written out, as transformers' QuickGELUActivation."""
    return mul(x, sigmoid(scale(x)))


def gelu_new(x: Tensor) -> Tensor:
    """transformers' NewGELUActivation: ``0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))`` written out."""
    return mul(scale(x), shift(tanh(scale(add(x, scale(power(x)))))))


class ActivationTable(dict[str, Callable[[Tensor], Tensor]]):
    """Activation functions by name. Raises UnknownNameError for one that is not described."""

    def __missing__(self, name: str) -> Callable[[Tensor], Tensor]:
        raise UnknownNameError("activation function", name, self, "of config.json")


ACTIVATIONS = ActivationTable(
    {
        "silu": silu,
        "swish": silu,
        "gelu": gelu,
        "gelu_pytorch_tanh": gelu,
        "gelu_fast": gelu,
        "gelu_new": gelu_new,
        "quick_gelu": quick_gelu,
        "relu": relu,
    }
)
"""Hugging Face names of activation functions (``transformers.activations.ACT2FN``)."""


# -- reductions and norms --------------------------------------------------------------------------------------------


def mean_last(x: Tensor) -> Tensor:
    """``x.mean(-1, keepdim=True)``: saves nothing."""
    tape = x.tape
    node = tape.node((x,), _mean_backward, meta=x.shape)
    out = tape.tensor((*x.shape[:-1], 1), x.dtype, node)
    tape.move(x.num_bytes)
    return out


def _mean_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    # The expanded gradient is divided by the number of elements: one full tensor.
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(out.num_bytes)
    return (out,)


def total(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x.sum(dim)`` of ``shape``: saves nothing; its gradient is g, expanded."""
    tape = x.tape
    node = tape.node((x,), _total_backward, meta=x.shape)
    out = tape.tensor(shape, x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _total_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    return (Tensor(g.storage, node.meta, g.dtype),)


def layer_norm(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    """``F.layer_norm``: one kernel; saves x, the fp32 mean and reciprocal deviation per row, and the weight.

    Autocast runs it in float32 (``torch/amp`` op lists).
    """
    tape = x.tape
    weight_operand: Operand = weight
    bias_operand: Operand | None = bias
    if tape.autocast is not None:
        x = to(x, DType.FLOAT32)
        weight_operand = cast_weight(weight, DType.FLOAT32, tape)
        bias_operand = None if bias is None else cast_weight(bias, DType.FLOAT32, tape)
    node = tape.node(
        (x, weight_operand, bias_operand),
        _layer_norm_backward,
        (x.detached(), _detached(weight_operand)),
        (x.shape, x.dtype),
    )
    out = tape.tensor(x.shape, x.dtype, node)
    rows = x.numel // x.shape[-1]
    mean, rstd = tape.tensor((rows,), DType.FLOAT32), tape.tensor((rows,), DType.FLOAT32)
    tape.save(node, mean, rstd)
    tape.move(2 * x.num_bytes)
    return out


def _layer_norm_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    shape, dtype = node.meta
    tape = g.tape
    grad_x = tape.tensor(shape, dtype) if node.needs[0] else None
    tape.move(4 * g.num_bytes)
    width = shape[-1:]
    grad_weight = tape.tensor(width, dtype) if node.needs[1] else None
    grad_bias = tape.tensor(width, dtype) if node.needs[2] else None
    return (grad_x, grad_weight, grad_bias)


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """``F.softmax(x, dim=-1, dtype=dtype)``: saves its result; casts x first, in the same kernel only for float16.

    Source: ``softmax`` in ``aten/src/ATen/native/SoftMax.cpp``.
    """
    tape = x.tape
    if dtype is not None and x.dtype is not DType.FLOAT16:
        x = to(x, dtype)
    node = tape.node((x,), _softmax_backward, meta=x.dtype)
    out = tape.tensor(x.shape, dtype or x.dtype, node)
    tape.save(node, out)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _softmax_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    out = g.tape.tensor(g.shape, node.meta)
    g.tape.move(2 * g.num_bytes + out.num_bytes)
    return (out,)


# -- matrix products -------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Operand, bias: Operand | None = None, *, is_transposed: bool = False) -> Tensor:
    """``F.linear``: saves x if the weight needs a gradient, and if x does, the weight, as a view (``weight.t()``).

    Where the weight ``is_transposed`` it is ``addmm``, which saves the weight itself. DeepSpeed's ``F.linear``
    (``LinearFunctionForZeroStage3``) saves both as they are.

    Shapes: x (..., k), weight (n, k), or (k, n) where it ``is_transposed`` (``x @ weight``), result (..., n):
    ``2 * rows * n * k`` operations forward, the same again for each gradient. Autocast casts x and the weight first;
    the casts then are what is saved.
    """
    tape = x.tape
    if tape.autocast is not None:
        x = to(x, tape.autocast)
        weight = cast_weight(weight, tape.autocast, tape)
        bias = None if bias is None else cast_weight(bias, tape.autocast, tape)
    out_width, in_width = weight.shape[0], product(weight.shape[1:])
    if is_transposed:
        out_width, in_width = in_width, out_width
    is_replaced = tape.keeps_linear_inputs and not is_transposed
    saves_x = weight.requires_grad or is_replaced
    saved = (x.detached() if saves_x else None, _detached(weight) if x.requires_grad else None)
    saves_view = x.requires_grad and not is_transposed and not is_replaced
    view_of = weight if saves_view and isinstance(weight, Parameter) else None
    meta = (x.shape, x.dtype, weight.shape, bias and bias.shape)
    node = tape.node((x, weight, bias), _linear_backward, saved, meta, view_of)
    out = tape.tensor((*x.shape[:-1], out_width), x.dtype, node)
    rows = x.numel // in_width
    tape.matmul(2 * rows * out_width * in_width, x.num_bytes + weight.numel * x.dtype.num_bytes + out.num_bytes)
    return out


def _linear_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x_shape, dtype, weight_shape, bias_shape = node.meta
    tape = g.tape
    flops = 2 * g.numel * x_shape[-1]
    hbm_bytes = (product(x_shape) + g.numel + product(weight_shape)) * dtype.num_bytes
    grad_x = grad_weight = grad_bias = None
    if node.needs[2]:
        grad_bias = reduced(g, bias_shape, dtype)
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, dtype)
        tape.matmul(flops, hbm_bytes)
    if node.needs[1]:
        grad_weight = tape.gradient(weight_shape, dtype)
        tape.matmul(flops, hbm_bytes)
    return (grad_x, grad_weight, grad_bias)


def matmul(x: Tensor, y: Tensor, shape: tuple[int, ...], inner: int) -> Tensor:
    """Batched ``x @ y`` of result ``shape`` over width ``inner``: saves each if the other needs a gradient."""
    tape = x.tape
    saved = (x.detached() if y.requires_grad else None, y.detached() if x.requires_grad else None)
    node = tape.node((x, y), _matmul_backward, saved, (x.shape, y.shape, inner))
    out = tape.tensor(shape, x.dtype, node)
    tape.matmul(2 * out.numel * inner, x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _matmul_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    x_shape, y_shape, inner = node.meta
    tape = g.tape
    flops = 2 * g.numel * inner
    hbm_bytes = (product(x_shape) + product(y_shape) + g.numel) * g.dtype.num_bytes
    grad_x = grad_y = None
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, g.dtype)
        tape.matmul(flops, hbm_bytes)
    if node.needs[1]:
        grad_y = tape.tensor(y_shape, g.dtype)
        tape.matmul(flops, hbm_bytes)
    return (grad_x, grad_y)


# -- lookups and layout ----------------------------------------------------------------------------------------------


def embedding(ids: Tensor, weight: Parameter) -> Tensor:
    """``F.embedding``: saves the ids; the weight's gradient is dense, vocabulary x width."""
    tape = ids.tape
    node = tape.node((weight,), _embedding_backward, (ids.detached(),), (weight.shape, weight.dtype))
    out = tape.tensor((*ids.shape, weight.shape[1]), weight.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _embedding_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    shape, dtype = node.meta
    out = g.tape.gradient(shape, dtype)
    g.tape.move(out.num_bytes + g.num_bytes)
    return (out,)


def split(x: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """``split``, ``chunk``, ``unbind`` into views of ``shapes``: saves nothing; backward writes one whole gradient."""
    tape = x.tape
    node = tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    parts: list[Tensor] = []
    for index, shape in enumerate(shapes):
        part = Tensor(x.storage, shape, x.dtype, node)
        part.output_index = index
        parts.append(part)
    return parts


def _split_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    shape, dtype = node.meta
    tape = next(g for g in grads if g is not None).tape
    out = tape.tensor(shape, dtype)
    tape.move(2 * out.num_bytes)
    return (out,)


def concatenate(parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.cat`` or ``stack``: saves nothing; the gradients are views of g."""
    tape = parts[0].tape
    node = tape.node(tuple(parts), _concatenate_backward, meta=[part.shape for part in parts])
    out = tape.tensor(shape, parts[0].dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _concatenate_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    return [
        Tensor(g.storage, shape, g.dtype) if needed else None
        for shape, needed in zip(node.meta, node.needs, strict=True)
    ]


def masked_scatter(target: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """``target.masked_scatter(mask, source)``: saves the mask; how image features enter the token embeddings."""
    tape = target.tape
    node = tape.node((target, source), _masked_scatter_backward, (mask.detached(),), (target.shape, source.shape))
    out = tape.tensor(target.shape, target.dtype, node)
    tape.move(2 * target.num_bytes + source.num_bytes)
    return out


def _masked_scatter_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    target_shape, source_shape = node.meta
    tape = g.tape
    grad_target = tape.tensor(target_shape, g.dtype) if node.needs[0] else None
    grad_source = tape.tensor(source_shape, g.dtype) if node.needs[1] else None
    tape.move(2 * g.num_bytes)
    return (grad_target, grad_source)


def slice_last(x: Tensor, width: int) -> Tensor:
    """``x[..., a:b]`` with ``b - a == width``: a view; its gradient is written into a tensor of x's whole size."""
    tape = x.tape
    node = tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, (*x.shape[:-1], width), x.dtype, node)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``x * cos + rotate_half(x) * sin``: rotary positions; saves cos and sin only, which all layers share."""
    half = x.shape[-1] // 2
    return add(mul(x, cos), mul(_rotate_half(x, half), sin))


def _rotate_half(x: Tensor, half: int) -> Tensor:
    """``cat((-x[..., half:], x[..., :half]), dim=-1)``."""
    first, second = slice_last(x, half), slice_last(x, half)
    return concatenate([scale(second), first], x.shape)


def shift_weight(weight: Parameter, dtype: DType, tape: "Tape") -> Tensor:
    """``1 + weight.to(dtype)``: a small tensor of the weight's shape."""
    cast = cast_weight(weight, dtype, tape)
    node = tape.node((cast,), _pass_through)
    return tape.tensor(weight.shape, dtype, node)


def slices(x: Tensor, shape: tuple[int, ...], count: int) -> list[Tensor]:
    """``torch.split`` of x into ``count`` views of ``shape``; x itself where there is one."""
    return [x.view(*shape)] if count == 1 else split(x, *[shape] * count)


def expand_weight(weight: Parameter, shape: tuple[int, ...], tape: "Tape") -> Tensor:
    """``weight.expand(shape)``: a view of a learned vector or table; its gradient is summed over the copies."""
    node = tape.node((weight,), _expand_weight_backward, meta=(weight.shape, weight.dtype))
    return Tensor(tape.tensor((0,), weight.dtype).storage, shape, weight.dtype, node)


def _expand_weight_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    shape, dtype = node.meta
    return (to(reduced(g, shape, g.dtype), dtype),)


def part(x: Tensor, *shape: int) -> Tensor:
    """A slice or selection of x, ``x[:, 1:]`` or ``x[0]``: a view; its gradient is written into one of x's size."""
    node = x.tape.node((x,), _split_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, shape, x.dtype, node)


def resample(x: Tensor, *shape: int, saves_input: bool = False) -> Tensor:
    """``interpolate``, ``unfold``, or a copy into a layout from which the gradient has to be copied back.

    Result and gradient are new tensors. Saves nothing, or the input (``avg_pool2d``).
    """
    tape = x.tape
    node = tape.node((x,), _resample_backward, (x.detached(),) if saves_input and x.requires_grad else (), x.shape)
    out = tape.tensor(shape, x.dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _resample_backward(node: Node, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    assert g is not None
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(g.num_bytes + out.num_bytes)
    return (out,)
