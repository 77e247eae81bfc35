"""Operations that only captured programs have: on any shape, and in place."""

from collections.abc import Sequence
from math import prod

from vlmplan.architecture import ops
from vlmplan.architecture.ops import Grads
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GraphNode, Tensor
from vlmplan.units import DType


def expand(x: Tensor, *shape: int) -> Tensor:
    """``x.expand(shape)``: a view; its gradient is summed over the copies."""
    node = x.tape.node((x,), _expand_backward, meta=(x.shape, x.dtype))
    return Tensor(x.storage, shape, x.dtype, node)


def _expand_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    shape, dtype = node.meta
    return [ops.to(ops.reduced(g, shape, g.dtype), dtype)]


def weight_view(weight: Parameter, shape: tuple[int, ...], tape: ForwardTape) -> Tensor:
    """A view of a weight; its gradient is one of the weight's size, but for a view of all of it, whose own it is."""
    if prod(shape) != weight.numel:
        return ops.expand_weight(weight, shape, tape)
    node = tape.node((weight,), _weight_view_backward, meta=(weight.shape, weight.dtype))
    return Tensor(tape.tensor((0,), weight.dtype).storage, shape, weight.dtype, node)


def _weight_view_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    shape, dtype = node.meta
    return [ops.to(Tensor(g.storage, shape, g.dtype), dtype)]


def average(x: Tensor, *shape: int) -> Tensor:
    """``x.mean(dim)``: saves nothing; its gradient is divided, which makes one of x's size."""
    node = x.tape.node((x,), _average_backward, meta=(x.shape, x.dtype))
    out = x.tape.tensor(shape, x.dtype, node)
    x.tape.move(x.num_bytes + out.num_bytes)
    return out


def _average_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    out = g.tape.tensor(*node.meta)
    g.tape.move(2 * out.num_bytes)
    return [out]


def picked(x: Tensor, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """``x[mask]``: saves the mask; its gradient is put into a new tensor of x's shape."""
    tape = x.tape
    node = tape.node((x,), _into_whole_backward, (mask.detached(),), (x.shape, x.dtype))
    out = tape.tensor(shape, x.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def _into_whole_backward(node: GraphNode, grads: Grads) -> Grads:
    """The gradient is put into, or added up in, a new tensor of the operand's whole shape and type."""
    g = ops.only(grads)
    out = g.tape.tensor(*node.meta)
    g.tape.move(out.num_bytes + g.num_bytes)
    return [out]


def into(x: Tensor, y: Tensor | None, *, replaces: bool) -> Tensor:
    """x with y put or added in place: its storage. ``replaces``: x's gradient is a new tensor, without what y
    replaced."""
    tape = x.tape
    node = tape.node(
        (x,) if y is None else (x, y), _into_backward, meta=(x.shape, None if y is None else y.shape, replaces)
    )
    tape.move(2 * x.num_bytes)
    return Tensor(x.storage, x.shape, x.dtype, node)


def _into_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    x_shape, y_shape, replaces = node.meta
    tape = g.tape
    results: list[Tensor | None] = [None]
    if node.needs[0]:
        results[0] = tape.tensor(x_shape, g.dtype) if replaces else g
    if y_shape is not None:
        is_like = y_shape == x_shape and not replaces
        results.append(None if not node.needs[1] else g if is_like else tape.tensor(y_shape, g.dtype))
    return results


def choice(parts: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """``torch.where(condition, x, y)``: saves the condition, a byte an element; each gradient is a new tensor."""
    tape = parts[0].tape
    node = tape.node(tuple(parts), _choice_backward, meta=[(part.shape, part.dtype) for part in parts])
    if node is not None:
        tape.save(node, tape.tensor(shape, DType.BOOL))
    out = tape.tensor(shape, parts[0].dtype, node)
    tape.move(sum(part.num_bytes for part in parts) + out.num_bytes)
    return out


def _choice_backward(node: GraphNode, grads: Grads) -> Grads:
    g = ops.only(grads)
    return [
        g.tape.tensor(*described) if needed else None for needed, described in zip(node.needs, node.meta, strict=True)
    ]
