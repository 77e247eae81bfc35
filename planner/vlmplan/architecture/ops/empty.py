"""Modules without weights of their own that are one operation, such as ``nn.Dropout`` (``empty_calls``)."""

from collections.abc import Callable, Sequence

from vlmplan.architecture.ops.base import Grads
from vlmplan.architecture.tensor import GraphNode, Tensor


def called(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function(x)``, which a module does. Where that is x itself, backward comes to the module all the same."""
    tape = x.tape
    if not tape.fetches_weights:
        return function(x)
    outer = tape.enter_empty_call()
    out = function(x)
    if out is x:
        node = tape.node((x,), _passed_backward)
        out = x if node is None else Tensor(x.storage, x.shape, x.dtype, node)
    tape.empty_call = outer
    return out


def _passed_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    return [grads.pop()]
