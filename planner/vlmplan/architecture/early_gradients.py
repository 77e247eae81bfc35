"""Gradients that backward makes of a checkpointed layer before the layer runs again.

What sets that off is the first saved tensor that an operation asks for (``unpack_hook`` in
``torch/utils/checkpoint.py``). Operations behind the last one that saves anything run before it: the products with a
number and the casts of adapters' results, additions of two types. The gradients that they leave are alive while the
layer runs again; those that they used up are gone.
"""

import heapq
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.storage import Storage
from vlmplan.architecture.tensor import GraphNode, Tensor

Ends = Sequence[tuple[GraphNode | None, int]]
"""Of each output of a layer the node that made it, and its place among that node's outputs."""
Begin = Callable[[WeightUser | None], None]
"""Told of the module whose operation is about to run."""


def run_early(tape: Any, ends: Ends, last_saved: int, grads: list[Tensor | None], begin: Begin) -> list[Storage]:
    """Run these operations, and give what they leave beside the gradients of the layer's own outputs, ``grads``. Those
    that they use up are replaced by others without bytes.

    ``last_saved``: the sequence number of the last node that saves something; ``ends`` know those after it.
    """
    if not any(node is not None and node.sequence > last_saved for node, _ in ends):
        return []
    with tape.looking_ahead():
        left = {id(one.storage) for one in _run(tape, ends, last_saved, list(grads), lambda module: None)}
    given = list(grads)
    for place, grad in enumerate(given):
        if grad is not None and id(grad.storage) not in left:
            grads[place] = Tensor(tape.counted(0), grad.shape, grad.dtype)
        del grad
    own = {id(grad.storage) for grad in grads if grad is not None}
    found = {id(one.storage): one.storage for one in _run(tape, ends, last_saved, given, begin)}
    return [storage for key, storage in found.items() if key not in own]


def _run(tape: Any, ends: Ends, last_saved: int, grads: list[Tensor | None], begin: Begin) -> list[Tensor]:
    """What the operations leave. ``grads`` is emptied."""
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

    for node, index in ends[: len(grads)]:  # those behind the last that arrived are not there
        grad = grads.pop(0)
        if node is not None and grad is not None:
            receive(node, index, grad)
        del grad
    while waiting:
        node = heapq.heappop(waiting)[1]
        begin(node.module)
        results = list(node.backward(node, received.pop(node)))
        for edge in node.inputs:
            result = results.pop(0)
            if result is not None and isinstance(edge, tuple):
                receive(*edge, result)
            elif result is not None and edge is not None:
                of_weights.append(result)
            del result
    return [*of_weights, *[grad for held in received.values() for grad in held if grad is not None]]


class EarlyStorages:
    """What has been left so, for the graph that is made when the layer has run again: its nodes after ``last_saved``
    have run, and hand on what they left."""

    def __init__(self, tape: Any, storages: list[Storage], last_saved: int) -> None:
        self._tape, self._storages, self.last_saved = tape, storages, last_saved

    def includes(self, node: GraphNode) -> bool:
        return node.sequence > self.last_saved and not node.saved

    def results(self, node: GraphNode) -> list[Tensor | None]:
        """The gradients that a node behind ``last_saved`` makes, or has made."""
        if not self.includes(node):
            return list(node.backward(node, node.grads))
        with self._tape.looking_ahead():
            results = list(node.backward(node, node.grads))
        taken: dict[int, Storage] = {}
        for place, edge in enumerate(node.inputs):
            result = results[place]
            if result is None or result.storage.num_bytes or (isinstance(edge, tuple) and self.includes(edge[0])):
                continue
            storage = taken.get(id(result.storage)) or self._of_size(result.num_bytes)
            if storage is not None:
                taken[id(result.storage)] = storage
                results[place] = type(result)(storage, result.shape, result.dtype)
        return results

    def _of_size(self, num_bytes: int) -> Storage | None:
        for place, storage in enumerate(self._storages):
            if storage.num_bytes == num_bytes:
                return self._storages.pop(place)
        return None


NOTHING_EARLY = EarlyStorages(None, [], sys.maxsize)
