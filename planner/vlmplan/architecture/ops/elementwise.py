"""Sums and products of equal or broadcast shapes, and functions of one tensor: activations and dropout."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vlmplan.architecture.ops.base import Grads, detached, new_of_same_shape, only, pass_through, promoted, reduced, to
from vlmplan.architecture.ops.empty import called
from vlmplan.architecture.tensor import GraphNode, Operand, Tensor
from vlmplan.errors import UnknownNameError
from vlmplan.units import DType


def add(x: Tensor, y: Operand) -> Tensor:
    """``x + y``: saves nothing; both gradients are g itself where the types agree."""
    tape = x.tape
    dtype = promoted(x.dtype, y.dtype)
    node = tape.node((x, y), _add_backward, meta=(x.dtype, y.dtype, y.shape if y.numel != x.numel else None))
    out = tape.tensor(x.shape, dtype, node)
    tape.move(x.num_bytes + y.numel * y.dtype.num_bytes + out.num_bytes)
    return out


def _add_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    x_dtype, y_dtype, y_shape = node.meta
    grad_y = None
    if node.needs[1]:
        grad_y = g if y_shape is None else reduced(g, y_shape, g.dtype)
        grad_y = to(grad_y, y_dtype)
    return (to(g, x_dtype) if node.needs[0] else None, grad_y)


def add_in_place(x: Tensor, y: Tensor) -> Tensor:
    """``x += y`` of one type: saves nothing; x's storage is the result, and both gradients are g, y's summed where it
    was broadcast."""
    tape = x.tape
    node = tape.node((x, y), _add_backward, meta=(x.dtype, y.dtype, y.shape if y.numel != x.numel else None))
    tape.move(3 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def subtract(x: Tensor, y: Tensor) -> Tensor:
    """``x - y``: saves nothing; the gradient of x is g, that of y ``-g``, of x's size before it is summed."""
    tape = x.tape
    node = tape.node((x, y), _subtract_backward, meta=y.shape if y.numel != x.numel else None)
    out = tape.tensor(x.shape, promoted(x.dtype, y.dtype), node)
    tape.move(x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _subtract_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    grad_y = None
    if node.needs[1]:
        grad_y = g.tape.tensor(g.shape, g.dtype)
        g.tape.move(2 * g.num_bytes)
        if node.meta is not None:
            grad_y = reduced(grad_y, node.meta, g.dtype)
    return (g if node.needs[0] else None, grad_y)


def mul(x: Tensor, y: Operand, *, y_is_first: bool = False) -> Tensor:
    """``x * y``: saves y if x needs a gradient, x if y does. A y without dimensions does not change the type.

    ``y_is_first``: it is written ``y * x``, so that y's gradient is made after that of x, and summed and cast before.
    """
    tape = x.tape
    saved = (x.detached() if y.requires_grad else None, detached(y) if x.requires_grad else None)
    broadcasts = y.numel != x.numel
    node = tape.node((x, y), _mul_backward, saved, (x.dtype, y.dtype, x.shape, y.shape, broadcasts, y_is_first))
    out = tape.tensor(x.shape, promoted(x.dtype, y.dtype) if y.shape else x.dtype, node)
    tape.move(x.num_bytes + y.numel * y.dtype.num_bytes + out.num_bytes)
    return out


def _mul_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The gradient of the second factor is made first (``MulBackward0`` asks for ``other`` before ``self``), and both
    are there before the first is cast or summed (``validate_outputs`` in ``engine.cpp``)."""
    g = only(grads)
    x_dtype, y_dtype, x_shape, y_shape, broadcasts, y_is_first = node.meta
    tape = g.tape
    made: list[Tensor | None] = [None, None]
    for place in (0, 1) if y_is_first else (1, 0):
        if node.needs[place]:
            made[place] = tape.tensor(x_shape, g.dtype)
            tape.move(3 * g.num_bytes)
    grad_x, grad_y = made
    made.clear()
    if tape.frees_saved:
        node.saved = ()
    if grad_x is not None and not y_is_first:
        grad_x = to(grad_x, x_dtype)
    if grad_y is not None:
        if broadcasts:
            grad_y = reduced(grad_y, y_shape, g.dtype)
        grad_y = to(grad_y, y_dtype)
    if grad_x is not None:
        grad_x = to(grad_x, x_dtype)
    return (grad_x, grad_y)


def where(mask: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """``torch.where(mask, x, y)``: saves the mask, which may be broadcast; both gradients are new tensors, first
    that of y."""
    tape = x.tape
    node = tape.node((x, y), _where_backward, (mask.detached(),), (x.dtype, y.dtype))
    out = tape.tensor(x.shape, promoted(x.dtype, y.dtype), node)
    tape.move(x.num_bytes + y.num_bytes + out.num_bytes)
    return out


def _where_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    made: list[Tensor | None] = []
    for needed in reversed(node.needs):
        made.append(g.tape.tensor(g.shape, g.dtype) if needed else None)
        g.tape.move(2 * g.num_bytes if needed else 0)
    return [each and to(each, dtype) for each, dtype in zip(reversed(made), node.meta, strict=True)]


def scale(x: Tensor) -> Tensor:
    """``x * number``, ``-x``, ``x + number``: saves nothing; its gradient is a new tensor for a product."""
    tape = x.tape
    node = tape.node((x,), _unary_backward)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def scale_in_place(x: Tensor, factor: Tensor | None = None) -> Tensor:
    """``x *= number``: saves nothing; x's storage is the result, its gradient a new tensor.

    ``factor``: the number is a tensor, which is saved: backward runs a checkpointed layer again when it asks for it.
    """
    saved = () if factor is None or not x.requires_grad else (factor.detached(),)
    node = x.tape.node((x,), new_of_same_shape, saved)
    x.tape.move(2 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def shift(x: Tensor) -> Tensor:
    """``x + number``: saves nothing; its gradient is g."""
    tape = x.tape
    node = tape.node((x,), pass_through)
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


def _unary_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    out = g.tape.tensor(g.shape, g.dtype)
    g.tape.move(g.num_bytes * (2 + (1 if node.saved else 0)))
    return (out,)


def clamp(x: Tensor, *, num_limits: int) -> Tensor:
    """``x.clamp(min, max)`` with one limit or both: saves x; backward masks g with a byte an element for each limit.

    Source: ``clamp_backward`` in ``torch/csrc/autograd/FunctionsManual.cpp``.
    """
    tape = x.tape
    node = tape.node((x,), _clamp_backward, (x.detached(),) if x.requires_grad else (), num_limits)
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def clamp_in_place(x: Tensor) -> Tensor:
    """``x.clamp_(min, max)``, both limits: x's storage is the result, and a copy of what it was is saved
    (``original_self``)."""
    tape = x.tape
    before = tape.tensor(x.shape, x.dtype) if x.requires_grad else None
    node = tape.node((x,), _clamp_backward, () if before is None else (before,), 2)
    tape.move(2 * x.num_bytes if before is None else 4 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _clamp_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    masks = [g.tape.tensor(g.shape, DType.BOOL) for _ in range(node.meta)]  # one for each limit
    out = g.tape.tensor(g.shape, g.dtype)
    g.tape.move(3 * g.num_bytes + 3 * sum([mask.num_bytes for mask in masks]))
    return (out,)


def maximum(x: Tensor) -> Tensor:
    """``torch.max(x, number)`` of a number that is a tensor: saves x. Backward halves g where both are equal and masks
    it where the number is larger, with a byte an element each time (``maximum`` in ``derivatives.yaml``)."""
    tape = x.tape
    node = tape.node((x,), _maximum_backward, (x.detached(),) if x.requires_grad else ())
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def _maximum_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    tape = g.tape
    halves = tape.tensor(g.shape, g.dtype)
    masks = [tape.tensor(g.shape, DType.BOOL)]
    out = tape.tensor(g.shape, g.dtype)
    masks.append(tape.tensor(g.shape, DType.BOOL))
    tape.move(8 * g.num_bytes + 4 * masks[0].num_bytes, num_kernels=5)
    del halves, masks
    return (out,)


def power(x: Tensor) -> Tensor:
    """``x.pow(number)``: saves x; backward writes ``x.pow(number - 1)``, a multiple of it, and the product with g.

    Under autocast in float32 (``aten/src/ATen/autocast_mode.h``, AT_FORALL_FP32).
    """
    tape, given = x.tape, x  # whoever calls torch holds what is given until the result is there
    if tape.autocast is not None:
        x = to(given, DType.FLOAT32)
    node = tape.node((x,), _power_backward, (x.detached(),) if x.requires_grad else ())
    out = tape.tensor(x.shape, x.dtype, node)
    tape.move(2 * x.num_bytes)
    return out


def _power_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
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


def relu_squared(x: Tensor) -> Tensor:
    """transformers' ReLUSquaredActivation: ``relu(x).square()``, which calls ``pow``; both save the same
    tensor, which is live until it returns."""
    applied = relu(x)
    squared = power(applied)
    del applied
    return squared


def tanh(x: Tensor) -> Tensor:
    """``torch.tanh``: saves its result."""
    return unary(x, saves_output=True)


def sigmoid(x: Tensor) -> Tensor:
    """``torch.sigmoid``: saves its result."""
    return unary(x, saves_output=True)


def dropout(x: Tensor, probability: float, *, is_module: bool = True) -> Tensor:
    """``F.dropout``: saves its mask, one byte an element on CUDA; x itself where nothing is dropped, as in evaluation.

    The CPU kernel instead multiplies by noise of x's type (``aten/src/ATen/native/Dropout.cpp``). ``is_module``:
    ``nn.Dropout`` calls it, which can be switched off.
    """
    if not is_module:
        return _dropped(x, probability)
    probability = 0.0 if x.tape.switches_dropout_off else probability
    return called(lambda x: _dropped(x, probability), x)


def _dropped(x: Tensor, probability: float) -> Tensor:
    tape = x.tape
    if probability == 0 or not tape.is_in_training_mode:
        return x
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
        "relu2": relu_squared,
        "sigmoid": sigmoid,
    }
)
"""Hugging Face names of activation functions (``transformers.activations.ACT2FN``)."""


class ActivationModule(NamedTuple):
    """An activation that is a module without weights. An attribute that holds it is called as in transformers, and
    begins with an underscore where that has a function instead."""

    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return called(self.function, x)


def activation_module(name: str) -> Callable[[Tensor], Tensor]:
    """``ACT2FN[name]``, a module. Raises UnknownNameError for one that is not described."""
    return ActivationModule(ACTIVATIONS[name])
