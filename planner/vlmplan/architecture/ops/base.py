"""What operations have in common: types of gradients, promotion, casts, copies, sums over broadcast dimensions."""

from collections.abc import Sequence

from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.tensor import ForwardTape, GradientView, GraphNode, Operand, Tensor
from vlmplan.units import DType

Grads = list[Tensor | None]


def promoted(left: DType, right: DType) -> DType:
    """The result type of a binary operation on two tensors (torch's type promotion for the types used here)."""
    if left is right:
        return left
    if not right.is_floating:
        return left
    if not left.is_floating:
        return right
    return DType.FLOAT32  # float32 with a 16-bit type, or bfloat16 with float16


def only(grads: Grads) -> Tensor:
    """The gradient of an operation's one result."""
    (g,) = grads
    assert g is not None
    return g


def summed_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The gradient of what was expanded from the shape in ``meta``: g, summed over the copies."""
    g = only(grads)
    return (reduced(g, node.meta, g.dtype),)


def rewritten_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """A gradient of the shape in ``meta``, which one kernel writes from g: resampled, expanded, in another order."""
    g = only(grads)
    out = g.tape.tensor(node.meta, g.dtype)
    g.tape.move(g.num_bytes + out.num_bytes)
    return (out,)


def detached(operand: Operand) -> Operand:
    return operand if isinstance(operand, Parameter) else operand.detached()


def to(x: Tensor, dtype: DType) -> Tensor:
    """``x.to(dtype)``: saves nothing; x itself where the type is the same already."""
    if x.dtype is dtype:
        return x
    tape = x.tape
    node = tape.node((x,), _cast_backward, meta=x.dtype)
    out = tape.tensor(x.shape, dtype, node)
    tape.move(x.num_bytes + out.num_bytes)
    return out


def _cast_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    return (to(g, node.meta),)


def cast_weight(weight: Operand, dtype: DType, tape: ForwardTape, *, is_saved: bool = True) -> Operand:
    """A weight in the element type ``dtype``: itself, or a cast on ``tape`` (autocast, norms in float32). ``is_saved``:
    whether the graph holds it then."""
    if weight.dtype is dtype:
        return weight
    if isinstance(weight, Tensor):
        return to(weight, dtype)
    is_cached = weight.requires_grad and dtype is tape.autocast and weight.meets_autocast
    shared = tape.cast_cache(weight) if is_cached else None
    if shared is not None and id(weight) in shared:
        tape.join_uses(weight)
        return shared[id(weight)]
    is_joined = bool(weight.shared_uses and is_cached and tape.caches_casts and tape.is_replaying)
    node = tape.node((weight,), pass_through if is_joined else _cast_backward, meta=weight.dtype)
    num_bytes = weight.numel * dtype.num_bytes
    if is_cached and shared is None and tape.takes_cast_apart(weight, num_bytes):
        tape.move(weight.num_bytes + num_bytes)
        return Tensor(tape.counted(0), weight.shape, dtype, node)
    out = tape.tensor(weight.shape, dtype, node)
    tape.move(weight.num_bytes + out.num_bytes)
    if shared is not None:
        shared[id(weight)] = out
    elif is_cached and tape.cached_casts is not None:
        tape.cached_casts.append(out)
    elif is_cached and not is_saved:
        tape.hold_cast(out)
    return out


def copy(x: Tensor, *shape: int) -> Tensor:
    """``contiguous()`` or ``reshape()`` of a tensor whose layout forces a copy; saves nothing."""
    tape = x.tape
    node = tape.node((x,), pass_through)
    out = tape.tensor(shape or x.shape, x.dtype, node)
    tape.move(2 * out.num_bytes)
    return out


def viewed(x: Tensor, *shape: int) -> Tensor:
    """``x.view(shape)`` with a node of its own: gradients of what uses the view are summed apart from others of x."""
    return Tensor(x.storage, shape, x.dtype, x.tape.node((x,), pass_through))


def new_of_same_shape(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    """The gradient of an operation that reads the one of its result and nothing else of its size."""
    g = only(grads)
    out = g.tape.tensor(g.shape, g.dtype)
    g.tape.move(2 * g.num_bytes)
    return (out,)


def shared(x: Tensor) -> Tensor:
    """x where its gradient is another's too when a further one of x arrives, which is not added to it in place
    (``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp``)."""
    return Tensor(x.storage, x.shape, x.dtype, x.tape.node((x,), _shared_backward))


def _shared_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    return (GradientView(g.storage, g.shape, g.dtype),)


def pass_through(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    (g,) = grads
    return (g,)


def reduced(g: Tensor, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A gradient summed over broadcast dimensions."""
    out = g.tape.tensor(shape, dtype)
    g.tape.move(g.num_bytes + out.num_bytes)
    return out
