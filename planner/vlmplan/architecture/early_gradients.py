"""Gradients that backward makes of a checkpointed layer before the layer runs again.

What sets that off is the first saved tensor that an operation asks for (``unpack_hook`` in
``torch/utils/checkpoint.py``). Operations behind the last one that saves anything run before it: the products with a
number and the casts of adapters' results, additions of two types. The gradients that they leave are alive while the
layer runs again.
"""

import heapq
from collections.abc import Sequence
from typing import Any

from vlmplan.architecture.tensor import GraphNode, Tensor

Ends = Sequence[tuple[GraphNode | None, int]]
"""Of each output of a layer the node that made it, and its place among that node's outputs."""


def early_gradient_bytes(tape: Any, ends: Ends, last_saved: int, grads: Sequence[Tensor | None]) -> list[int]:
    """Bytes of each of them, beyond the gradients of the layer's own outputs, ``grads``.

    ``last_saved``: the sequence number of the last node that saves something; ``ends`` know those after it.
    """
    received: dict[GraphNode, list[Tensor | None]] = {}
    waiting: list[tuple[int, GraphNode]] = []
    of_weights: list[Tensor] = []

    def receive(node: GraphNode, index: int, grad: Tensor) -> None:
        if node not in received and node.sequence > last_saved:
            heapq.heappush(waiting, (-node.sequence, node))
        held = received.setdefault(node, [])
        held += [None] * (index + 1 - len(held))
        before = held[index]
        held[index] = grad if before is None else tape.sum_of_gradients(before)

    with tape.looking_ahead():
        for (node, index), grad in zip(ends, grads, strict=False):  # those behind the last that arrived are not there
            if node is not None and grad is not None:
                receive(node, index, grad)
        while waiting:
            node = heapq.heappop(waiting)[1]
            for edge, result in zip(node.inputs, node.backward(node, received.pop(node)), strict=False):
                if result is None or edge is None:
                    continue
                if isinstance(edge, tuple):
                    receive(*edge, result)
                else:
                    of_weights.append(result)
    left = [*of_weights, *[grad for held in received.values() for grad in held if grad is not None]]
    return _beyond(_by_storage(left), _by_storage([grad for grad in grads if grad is not None]))


def _by_storage(tensors: Sequence[Tensor]) -> dict[int, int]:
    """Bytes of storages, of which none may have been counted."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        sizes[id(tensor.storage)] = max(tensor.num_bytes, sizes.get(id(tensor.storage), 0))
    return sizes


def _beyond(left: dict[int, int], own: dict[int, int]) -> list[int]:
    """Sizes of what is ``left`` beside the outputs' ``own`` gradients. The tape holds all of those until the layer has
    run again; torch has freed the ones that were used up, so their bytes are taken off."""
    gone = sum([size for storage, size in own.items() if storage not in left])
    found: list[int] = []
    for size in [size for storage, size in left.items() if storage not in own]:
        taken = min(size, gone)
        gone -= taken
        if size > taken:
            found.append(size - taken)
    return found
