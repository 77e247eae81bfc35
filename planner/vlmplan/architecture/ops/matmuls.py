"""Matrix products: where most operations are, and what they save for each other's gradients."""

from collections.abc import Sequence
from math import prod

from vlmplan.architecture.ops.base import Grads, cast_weight, copy, detached, new_of_same_shape, only, reduced, to
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import GradientView, GraphNode, Operand, Tensor


def linear(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    *,
    is_transposed: bool = False,
    is_written_out: bool = False,
    copies_input: bool = False,
    view_of: Parameter | None = None,
) -> Tensor:
    """``F.linear``: saves x if the weight needs a gradient, and if x does, the weight, as a view (``weight.t()``).

    Where the weight ``is_transposed`` it is ``addmm``, which saves the weight itself. DeepSpeed's ``F.linear``
    (``LinearFunctionForZeroStage3``) saves both as they are, once it has its result; a product that
    ``is_written_out``, ``x @ weight.T``, is not replaced by it.

    Shapes: x (..., k), weight (n, k), or (k, n) where it ``is_transposed`` (``x @ weight``), result (..., n):
    ``2 * rows * n * k`` operations forward, the same again for each gradient. Autocast casts x and the weight first;
    the casts then are what is saved.

    Backward takes gradients in the order of torch's generated code, by the names of the arguments: of ``mm(self,
    mat2)`` the weight's first, of ``addmm(self, mat1, mat2)`` x's, the weight's and the bias's. The product gives the
    gradient of ``weight.t()``; that of the weight is its transpose, a ``GradientView``. So is that of x where torch
    flattens x for the product (``_flatten_nd_linear``, ``should_fold`` in ``aten/src/ATen/native/LinearAlgebra.cpp``).
    ``copies_input``: x lies in memory in another order than rows, see ``_in_rows``. ``view_of``: the weight that
    ``weight`` is a view of.
    """
    operands = _cast_operands(x, weight, bias)  # whoever calls torch holds x itself until the product is there
    ways = {"is_transposed": is_transposed, "is_written_out": is_written_out, "copies_input": copies_input}
    return _linear(*operands, **ways, view_of=view_of if operands[1] is weight else None)


def _linear(
    x: Tensor,
    weight: Operand,
    bias: Operand | None,
    *,
    is_transposed: bool,
    is_written_out: bool,
    copies_input: bool,
    view_of: Parameter | None,
) -> Tensor:
    """``linear`` of what autocast has made of its operands."""
    tape = x.tape
    if copies_input and not tape.keeps_linear_inputs:
        x = _in_rows(x, weight)
    out_width, in_width = weight.shape[0], prod(weight.shape[1:])
    if is_transposed:
        out_width, in_width = in_width, out_width
    is_replaced = tape.keeps_linear_inputs and not is_transposed and not is_written_out
    saves_x = weight.requires_grad and not is_replaced
    saved = (x.detached() if saves_x else None, detached(weight) if x.requires_grad else None)
    is_alias = tape.saves_aliases and weight.requires_grad
    saves_view = x.requires_grad and not is_transposed and (is_alias or not is_replaced)
    view_of = view_of if x.requires_grad else None
    if saves_view and isinstance(weight, Parameter):
        view_of = weight
    is_weight_first = bias is None and not is_replaced and not is_transposed
    gives_view = not is_transposed and not is_replaced
    is_flattened = len(x.shape) != 2 and not is_replaced
    meta = (x.shape, x.dtype, weight.shape, bias and bias.shape, is_weight_first, gives_view, is_flattened)
    node = tape.node((x, weight, bias), _linear_backward, saved, meta, view_of)
    if node is not None and not is_replaced and isinstance(bias, Parameter):
        node.gives_last_first = True  # ``addmm(bias, x, weight.t())``: that of the weight comes by way of ``t``
    out = tape.tensor((*x.shape[:-1], out_width), x.dtype, node)
    rows = x.numel // in_width
    hbm_bytes = x.num_bytes + weight.numel * x.dtype.num_bytes + out.num_bytes
    tape.matmul(2 * rows * out_width * in_width, hbm_bytes, x.dtype)
    if is_replaced:
        tape.save(node, x)
    return out


def _cast_operands(x: Tensor, weight: Operand, bias: Operand | None) -> tuple[Tensor, Operand, Operand | None]:
    """What autocast makes of a product's operands; outside of it they are as they were. The last argument is cast
    first, as GCC takes the arguments of ``(*F)(cached_cast(...)...)`` in ``aten/src/ATen/autocast_mode.h``: so backward
    comes to the cast of the first one first."""
    tape, dtype = x.tape, x.tape.autocast
    if dtype is None:
        return x, weight, bias
    bias = None if bias is None else cast_weight(bias, dtype, tape)
    weight = cast_weight(weight, dtype, tape, is_saved=x.requires_grad)
    return to(x, dtype), weight, bias


def _in_rows(x: Tensor, weight: Operand) -> Tensor:
    """x (samples, tokens, k) whose tokens lie side by side: rows of several samples are a copy. It is made where the
    weight's gradient is wanted, as torch flattens x then alone (``should_fold``): else the product takes x as it is."""
    tape = x.tape
    wants_gradient = weight.requires_grad and not (tape.is_evaluating or tape.has_no_graph)
    return copy(x) if wants_gradient and x.shape[0] > 1 else x


def weight_product(weight: Operand, x: Tensor) -> Tensor:
    """``weight @ x.transpose(1, 2)`` of x (samples, tokens, k) and weight (n, k): (samples, n, tokens).

    Where the weight needs a gradient, torch multiplies rows by it and turns the result, a copy; the gradient of that
    is put into rows too, where there are several samples (``should_fold`` in ``aten/src/ATen/native/
    LinearAlgebra.cpp``).
    """
    tape = x.tape
    shape = (x.shape[0], weight.shape[0], x.shape[1])
    operand = weight
    if tape.autocast is not None:
        operand = cast_weight(weight, tape.autocast, tape, is_saved=x.requires_grad)
    out = linear(x, operand, is_written_out=True)
    if not operand.requires_grad:
        return out.view(*shape)
    if shape[0] > 1:
        out = Tensor(out.storage, out.shape, out.dtype, tape.node((out,), new_of_same_shape))
    return copy(out, *shape)


def _linear_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    x_shape, dtype, weight_shape, bias_shape, is_weight_first, gives_view, is_flattened = node.meta
    tape = g.tape
    flops = 2 * g.numel * x_shape[-1]
    hbm_bytes = (prod(x_shape) + g.numel + prod(weight_shape)) * dtype.num_bytes
    grad_x = grad_weight = grad_bias = None
    if is_weight_first and node.needs[1]:
        grad_weight = tape.gradient(weight_shape, dtype)
        tape.matmul(flops, hbm_bytes, dtype)
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, dtype)
        if is_flattened:
            grad_x = GradientView(grad_x.storage, x_shape, dtype)
        tape.matmul(flops, hbm_bytes, dtype)
    if not is_weight_first and node.needs[1]:
        grad_weight = tape.gradient(weight_shape, dtype)
        tape.matmul(flops, hbm_bytes, dtype)
    if node.needs[2]:
        grad_bias = reduced(g, bias_shape, dtype)
    if gives_view and grad_weight is not None:
        grad_weight = GradientView(grad_weight.storage, weight_shape, dtype)
    return (grad_x, grad_weight, grad_bias)


def matmul(x: Tensor, y: Tensor, shape: tuple[int, ...], inner: int, *, view_of: Parameter | None = None) -> Tensor:
    """Batched ``x @ y`` of result ``shape`` over width ``inner``: saves each if the other needs a gradient.

    The gradient of y comes first, as it does in ``bmm(self, mat2)``. ``view_of``: the weight that y is a view of.
    """
    tape = x.tape
    saved = (x.detached() if y.requires_grad else None, y.detached() if x.requires_grad else None)
    node = tape.node((x, y), _matmul_backward, saved, (x.shape, y.shape, inner), view_of if x.requires_grad else None)
    out = tape.tensor(shape, x.dtype, node)
    tape.matmul(2 * out.numel * inner, x.num_bytes + y.num_bytes + out.num_bytes, x.dtype)
    return out


def _matmul_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    x_shape, y_shape, inner = node.meta
    tape = g.tape
    flops = 2 * g.numel * inner
    hbm_bytes = (prod(x_shape) + prod(y_shape) + g.numel) * g.dtype.num_bytes
    grad_x = grad_y = None
    if node.needs[1]:
        grad_y = tape.tensor(y_shape, g.dtype)
        tape.matmul(flops, hbm_bytes, g.dtype)
    if node.needs[0]:
        grad_x = tape.tensor(x_shape, g.dtype)
        tape.matmul(flops, hbm_bytes, g.dtype)
    return (grad_x, grad_y)
