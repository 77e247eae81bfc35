"""Activation checkpointing: only a layer's inputs are kept, and backward runs the layer again, with a graph.

Source: ``torch.utils.checkpoint``, whose checkpoints are not reentrant in transformers since 5.0, and are in other
trainers (``CheckpointKind``).

Inputs that are offloaded go to pinned host memory when the layer has run and come back, as new tensors, when backward
runs it again; the trainer's ``models/offloading.py`` copies on the stream that computes, so nothing else is in flight.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vlmplan.architecture.early_gradients import NOTHING_EARLY, EarlyStorages, run_early
from vlmplan.architecture.empty_calls import EmptyCall
from vlmplan.architecture.ops.base import pass_through
from vlmplan.architecture.parameter import WeightUser
from vlmplan.architecture.recomputation import Recomputation
from vlmplan.architecture.tensor import GraphNode, Tensor


def as_tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a layer returns, as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def checkpoint(function: Callable[..., Any], *inputs: Tensor, by_keyword: bool = False) -> Any:
    """``function(*inputs)``, a tensor or a tuple of them, under activation checkpointing.

    Every tensor with a gradient that the function uses must be among the inputs. ``by_keyword``: they come so, and
    are part of what runs again, which is never offloaded.
    """
    tape = inputs[0].tape
    result, num_saved, last_saved = tape.pack(function, inputs)
    outputs = as_tuple(result)
    if all(out.node is None for out in outputs):
        return result
    offloads = tape.offloads_inputs and not by_keyword
    saved = tuple([_on_host(x) if offloads else x.detached() for x in inputs])
    ends = tuple([(out.node, out.output_index) for out in outputs])
    users = tape.last_users, tape.last_empty_call, tape.last_adapter
    meta = (tape, function, num_saved, (ends, last_saved), users, tape.ends_in_block, tape.held_inside, offloads)
    # The edges to the inputs are kept although the node exists for the sake of the weights inside as well.
    again = _run_whole_again if tape.is_reentrant else _run_again
    node = tape.node(inputs, again, saved, meta)
    if node is None:
        node = tape.rootless_node(saved, again, meta)
    for index, out in enumerate(outputs):
        if out.node is not None:
            out.node, out.output_index = node, index
    return result


def named_input(x: Tensor) -> Tensor:
    """x, which a layer gets by keyword that is checkpointed within the checkpoint of another layer.

    What goes by keyword is part of the function that the inner checkpoint runs again (``GradientCheckpointingLayer`` of
    transformers 5.23), and stays from the first forward until the backward of the inner layer is over; what goes by
    position is saved as any tensor of the outer layer is. Both run again once, the outer up to the inner layer, which
    asks for its inputs, so that they are as one in all else.
    """
    tape = x.tape
    if not (tape.is_packing or tape.is_replaying):
        return x
    tape.held_inside.append(x.detached())
    node = tape.node((x,), pass_through, (x,))
    if node is None:
        return x
    if tape.is_replaying:
        tape.held_inside.clear()
    return Tensor(x.storage, x.shape, x.dtype, node)


def checkpoint_part(
    call: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    is_trained: bool,
) -> Any:
    """A module of a layer under a checkpoint of its own, where backward comes to it. What it takes beside its input
    needs no gradient."""
    x, *others = args
    run = partial(_call_with, call, others, kwargs)
    return checkpoint(run, x) if x.requires_grad or is_trained else run(x)


def _call_with(call: Callable[..., Any], others: Sequence[Any], kwargs: dict[str, Any], x: Tensor) -> Any:
    return call((x, *others), kwargs)


def _run_whole_again(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    """``CheckpointFunction.backward``: the layer runs to its end before its backward begins, and the frame holds what
    it returns and the gradients of that until all is over."""
    tape, function, *_, (_, _, last_adapter), _, held, offloads = node.meta
    captured, inputs = _captured_inputs(node, tape, offloads=offloads)
    tape.held_inside, given = held, list(grads)
    with tape.graph_of_its_own() as attached:
        outputs = as_tuple(tape.replay(function, inputs, sys.maxsize, last_adapter))
    last = _last_made(outputs, grads)
    root, index = outputs[last].node, outputs[last].output_index
    assert root is not None
    _hold_gradients(outputs, grads, last)
    for out in outputs:
        out.node = None
    _backpropagate(tape, root, grads, index, tape.take_recomputation((), ends_in_block=False), NOTHING_EARLY)
    attached.clear()
    given.clear()
    return [into.pop() if into else None for into in captured]


def _run_again(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    tape, function, num_saved, (ends, last_saved), users, ends_in_block, held, offloads = node.meta
    users, empty_call, last_adapter = users
    captured, inputs = _captured_inputs(node, tape, offloads=offloads)
    # Their backward begins, down to the operation that asks for the first saved tensor and so for all of this.
    begin = _Beginning(tape, users, empty_call)
    left = run_early(tape, ends, last_saved, grads, begin)
    begin.reach(None)
    tape.held_inside = held
    with tape.graph_of_its_own() as attached:
        result = tape.replay(function, inputs, num_saved, last_adapter)
    attached.clear()  # what it has saved is handed to the graph of the first time, and its own goes
    outputs = as_tuple(result)
    last = _last_made(outputs, grads)
    root, index = outputs[last].node, outputs[last].output_index
    _hold_gradients(outputs, grads, last)
    del outputs, result
    inputs.clear()
    # node.saved stays: torch's frame holds the inputs until the last node inside has run (_NoopSaveInputs), or what of
    # them is on the host.
    if offloads:
        node.saved = ()
    assert root is not None
    early = EarlyStorages(tape, left, tape.stopped_at)
    _backpropagate(tape, root, grads, index, tape.take_recomputation(users, ends_in_block=ends_in_block), early)
    attached.clear()
    return [into.pop() if into else None for into in captured]


class _Beginning:
    """The backward of modules begins, from outside in: the weights of each are there before its own operations run."""

    def __init__(self, tape: Any, users: Sequence[WeightUser], empty_call: EmptyCall | None) -> None:
        self._tape, self._waiting, self._empty_call = tape, list(users), empty_call

    def __call__(self, module: WeightUser | None) -> None:
        if any(user is module for user in self._waiting):
            self.reach(module)

    def reach(self, module: WeightUser | None) -> None:
        """All modules down to ``module``, or all."""
        if self._empty_call is not None:
            self._tape.prefetch(self._empty_call.begin_backward())
            self._empty_call = None
        while self._waiting:
            user = self._waiting.pop(0)
            self._tape.fetch(user)
            if user is module:
                break


def _on_host(x: Tensor) -> Tensor:
    """What stands for x, and takes no device memory, while it is in host memory."""
    x.tape.copy_to_or_from_host(x.num_bytes)
    return Tensor(x.tape.tensor((0,), x.dtype).storage, x.shape, x.dtype)


def _from_host(x: Any, tape: Any) -> Tensor:
    assert isinstance(x, Tensor)
    tape.copy_to_or_from_host(x.num_bytes)
    return tape.tensor(x.shape, x.dtype)


def _last_made(outputs: Sequence[Tensor], grads: list[Tensor | None]) -> int:
    """The place of the output that was made last of those that have a gradient: it is made of the others. Not all have
    one: a stage of Swin hands on what it has merged, and what it was before, which nothing looks at."""
    made = [
        (out.node.sequence, -place)
        for place, (out, grad) in enumerate(zip(outputs, grads, strict=False))
        if grad is not None and out.node is not None
    ]
    return -max(made)[1]


def _hold_gradients(outputs: Sequence[Tensor], grads: list[Tensor | None], last: int) -> None:
    """Leave in ``grads`` that of the output ``last``; those of the others wait at the nodes that have made them, which
    its backward reaches."""
    for place, (out, grad) in enumerate(zip(outputs, grads, strict=False)):  # those behind the last are not there
        if place != last and grad is not None and out.node is not None:
            out.node.grads += [None] * (out.output_index + 1 - len(out.node.grads))
            out.node.grads[out.output_index] = grad
    grads[:] = [grads[last]]


def _captured_inputs(node: GraphNode, tape: Any, *, offloads: bool) -> tuple[list[list[Tensor | None]], list[Tensor]]:
    """Where gradients of a checkpoint's inputs go, and the inputs, which come back from the host where they waited
    there."""
    if offloads:
        node.saved = tuple([_from_host(x, tape) for x in node.saved])
    captured: list[list[Tensor | None]] = [[] for _ in node.saved]
    return captured, [_captured_input(node, position, into) for position, into in enumerate(captured)]


def _backpropagate(
    tape: Any,
    root: GraphNode,
    grads: list[Tensor | None],
    index: int,
    recomputation: Recomputation,
    early: EarlyStorages,
) -> None:
    """Backward through the graph of a layer that has run again, whose nodes let go of what they saved."""
    outside, tape.frees_saved = tape.frees_saved, True
    tape.backpropagate(root, grads, index, recomputation, early)
    tape.frees_saved = outside


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
