"""Activation checkpointing: only a layer's inputs are kept, and backward runs the layer again, with a graph.

Source: ``torch.utils.checkpoint`` with ``use_reentrant=False``, transformers' default since 5.0.
"""

from collections.abc import Callable, Sequence

from vlmplan.architecture.tensor import GraphNode, Tensor
from vlmplan.units import DType


def checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """``function(*inputs)`` under activation checkpointing.

    Every tensor with a gradient that the function uses must be among the inputs.
    """
    tape = inputs[0].tape
    out, num_saved, early_bytes = tape.pack(function, inputs)
    if out.node is None:
        return out
    saved = tuple([x.detached() for x in inputs])
    meta = (tape, function, num_saved, early_bytes)
    # The edges to the inputs are kept although the node exists for the sake of the weights inside as well.
    node = tape.node(inputs, _run_again, saved, meta)
    if node is None:
        node = tape.rootless_node(saved, _run_again, meta)
    out.node, out.output_index = node, 0
    return out


def _run_again(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    tape, function, num_saved, early_bytes = node.meta
    captured: list[list[Tensor | None]] = [[] for _ in node.saved]
    inputs = [_captured_input(node, position, into) for position, into in enumerate(captured)]
    early_gradients = tape.tensor((early_bytes,), DType.BOOL)  # bytes
    out = tape.replay(function, inputs, num_saved)
    del early_gradients
    root, index = out.node, out.output_index
    del out
    inputs.clear()
    # node.saved stays: torch's frame holds the inputs until the last node inside has run (_NoopSaveInputs).
    assert root is not None
    tape.backpropagate(root, grads, index, tape.take_recomputed())
    return [into.pop() if into else None for into in captured]


def _captured_input(node: GraphNode, position: int, into: list[Tensor | None]) -> Tensor:
    """A checkpoint's input as a leaf of the graph that backward rebuilds; its gradient goes ``into`` a list."""
    x = node.saved[position]
    assert isinstance(x, Tensor)
    capture: GraphNode | None = None
    if node.needs[position]:
        capture = GraphNode((), (), (), _capture, into)
        capture.section, capture.sequence = node.section, -position
    return Tensor(x.storage, x.shape, x.dtype, capture)


def _capture(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    node.meta.append(grads[0])
    return ()
