"""A training step on symbolic tensors: which bytes live when, what autograd saves, how much is computed.

The modules of this package are written like the transformers modules they describe, on ``Tensor``s that know their
shape and element type but hold no numbers. Running them on a ``Tape`` records, operation by operation,

- storages allocated and freed. A storage lives as long as something refers to it: a local variable of a ``forward``,
  a tensor saved for backward, a gradient on its way. Peaks come out of the same code structure that makes them in
  torch, not out of a constant per layer;
- what each operation saves for its backward, by the rules of torch's ``derivatives.yaml``: an input is kept only when
  a gradient that needs it is needed, so frozen weights and towers without gradients come out right;
- floating point operations and bytes moved.

The result is a ``Trace`` (see ``trace``), which the engine models in ``vlmplan.memory`` replay: when a gradient is
kept, bucketed or sharded, and when a weight is gathered, is DeepSpeed's business and not the model's.
"""

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property, partial

from vlmplan.architecture import ops
from vlmplan.architecture.backward_visit import NOTHING_RECOMPUTED, ParameterUse, Visit
from vlmplan.architecture.early_gradients import NOTHING_EARLY, EarlyStorages
from vlmplan.architecture.first_layer import UnequalLayersError
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.recomputation import Recomputation
from vlmplan.architecture.tensor import Edge, ForwardTape, GradientView, GraphNode, Tensor
from vlmplan.architecture.trace import WHOLE, Drop, GradientPart, GradientReady
from vlmplan.errors import InputError
from vlmplan.units import DType


class Tape(ForwardTape):
    """Runs one micro batch, forward and backward, and records it.

    The backward runs as in torch's autograd engine. What an operation computes is written in ``ops``; here is in which
    order nodes run, when gradients of one tensor are summed, when a weight's gradient is whole, and when a module is
    taken to be done.

    ``accumulates_in_place``: the second gradient of a tensor is added to the first in place, as torch's engine does
    unless the first is a ``GradientView`` (``InputBuffer::accumulate``). Under a dispatch mode, as in rehearsals, every
    sum is a new tensor.
    """

    gradient_part: GradientPart = WHOLE
    """Of the gradients of weights that the running backward makes."""

    keeps_logits = False
    """Whether the training loop holds them until the next micro batch (``Batch.keeps_logits``)."""

    @cached_property
    def kept_outputs(self) -> list[Tensor]:
        """What it holds of the micro batch before, and then of this one."""
        return []

    @cached_property
    def cast_inputs(self) -> list[Tensor]:
        """Pixels and spectrograms that were cast for the forward, and go when backward begins: ``training_step`` has
        let go of its inputs (``del inputs`` in transformers 5.23 ``trainer.py``), and so has FSDP's root."""
        return []

    @cached_property
    def shared_gradients(self) -> dict[ParameterUse, Tensor]:
        """The gradients of weights that layers share, as far as they are there."""
        return {}

    @cached_property
    def shared_pending(self) -> dict[ParameterUse, int]:
        """How many gradients each of these waits for."""
        return {}

    def again(self) -> "Tape":
        """A new tape like this one, which runs every layer of a stack."""
        tape = type(self)(
            autocast=self.autocast,
            accumulates_in_place=self.accumulates_in_place,
            fuses_dropout=self.fuses_dropout,
            makes_loss_inside=self.makes_loss_inside,
            keeps_linear_inputs=self.keeps_linear_inputs,
            follows_weights=self.follows_weights,
            is_evaluating=self.is_evaluating,
            caches_casts=self.caches_casts,
        )
        tape.reuses_layers, tape.outputs.has_encoded = False, self.outputs.has_encoded
        tape.offloads_inputs, tape.tiles_mlps = self.offloads_inputs, self.tiles_mlps
        tape.switches_adapters_off, tape.reads_head = self.switches_adapters_off, self.reads_head
        tape.runs_without_adapters = self.runs_without_adapters
        tape.is_reentrant, tape.notes_adapters = self.is_reentrant, self.notes_adapters
        tape.stays_in_training_mode = self.stays_in_training_mode
        tape.input_gradients, tape.switches_dropout_off = self.input_gradients, self.switches_dropout_off
        return tape

    PLACES_OF_FEATURES = "scatter"
    """The section that puts features of images where words leave room for them."""
    _autocast_of_forward: DType | None = None

    def encode_apart(self) -> None:
        """From the words' embedding on, until features find their places, what follows is outside of autocast."""
        self._autocast_of_forward = self.autocast

    def enter(self, key: str) -> None:
        if self._autocast_of_forward is not None:
            if key == self.PLACES_OF_FEATURES:
                self.autocast, self._autocast_of_forward = self._autocast_of_forward, None
            elif not key.startswith("embedding"):
                self.autocast = None
        super().enter(key)

    def run_backward(self, loss: Tensor) -> None:
        """The backward of the whole micro batch, from ``loss``. Raises InputError where nothing trained made it."""
        self._close_gap()
        self._runs_backward = True
        if loss.node is None:
            raise InputError(
                "no sample reaches what is trained, so the loss has no gradient; "
                "where only what sees images is trained, --images-per-sample of 1 or more is needed"
            )
        self.enter(loss.node.section)
        self.cast_inputs.clear()
        grads: list[Tensor | None] = [self.tensor(loss.shape, loss.dtype)]
        root = loss.node
        loss.node = None
        self.backpropagate(root, grads)

    def backpropagate(
        self,
        root: GraphNode,
        grads: list[Tensor | None],
        output_index: int = 0,
        recomputation: Recomputation = NOTHING_RECOMPUTED,
        early: EarlyStorages = NOTHING_EARLY,
    ) -> None:
        """Run the graph below ``root`` as torch's engine does: by sequence number, latest first.

        ``grads`` holds the gradient of the root, and is emptied: only the graph refers to it from here on.
        ``recomputation``: what has just run again to make this graph; ``early``: what was left before.
        Source: ``torch/csrc/autograd/engine.cpp`` (``compareByNode``: weights' accumulators before everything else).
        """
        pending = self._count_dependencies(root)
        buffers: dict[ParameterUse, Tensor] = {}
        grad = grads.pop()
        assert grad is not None
        assert not grads
        self._receive(root, output_index, grad)
        del grad
        ready: list[tuple[int, GraphNode]] = [(-root.sequence, root)]
        visit = Visit(self, recomputation, partial(self.hand_over, buffers=buffers))
        while ready:
            node = heapq.heappop(ready)[1]
            if node.turn is not self.turn:
                self.enter_turn(node.turn)
            begins = node.empty_call is not None and not node.empty_call.has_begun
            if begins or node.module is not visit.module or node.section != self._key or visit.is_in_block:
                visit.come_to(node)
            is_left = node.sequence > early.last_saved
            results = early.results(node) if is_left else list(node.backward(node, node.grads))
            edges, node.grads, node.saved, node.inputs = node.inputs, [], (), ()
            if node.held:
                self._drops += [Drop(handle) for handle in node.held]
            for position, edge in self._in_turn(node, edges):
                if isinstance(edge, Parameter):
                    use = self._parameter_use(edge, node)
                    if self._receive_parameter_gradient(use, results, position, buffers, pending):
                        visit.take_gradient(use)
                elif edge is not None:
                    visit.has_input_grad |= edge[0].module is not visit.module
                    if self._hand_on(edge, results, position):
                        heapq.heappush(ready, (-edge[0].sequence, edge[0]))
        visit.end()

    def _in_turn(self, node: GraphNode, edges: Sequence[Edge]) -> Iterable[tuple[int, Edge]]:
        """The inputs of ``node`` with their places, as their gradients are handed on. That of a module's input waits
        under ZeRO-3 in a node of DeepSpeed's until those of its weights are there (``PostBackwardFunctionModule`` in
        0.19.8 ``zero/parameter_offload.py``; weights' accumulators run before everything else)."""
        if node.gives_last_first:
            last = len(edges) - 1
            return sorted(enumerate(edges), key=lambda one: (one[0] != last, not isinstance(one[1], Parameter)))
        if node.module is None or not self.follows_weights or len(edges) < 2 or not isinstance(edges[1], Parameter):
            return enumerate(edges)
        return sorted(enumerate(edges), key=lambda one: not isinstance(one[1], Parameter))

    def _hand_on(self, edge: tuple[GraphNode, int], results: list[Tensor | None], position: int) -> bool:
        """Give a result to the node before, and forget it; whether that node has all of its gradients now."""
        target, index = edge
        result, results[position] = results[position], None
        if result is not None:
            self._receive(target, index, result)
        target.num_pending -= 1
        return target.num_pending == 0

    def _receive_parameter_gradient(
        self,
        use: ParameterUse,
        results: list[Tensor | None],
        position: int,
        buffers: dict[ParameterUse, Tensor],
        pending: dict[ParameterUse, int],
    ) -> bool:
        """Add one gradient of a weight, or none, to what there is; whether the weight's whole gradient is there now."""
        grad, results[position] = results[position], None
        if use[0].shared_uses:  # layers that run again in backward are a graph each
            buffers, pending = self.shared_gradients, self.shared_pending
            pending.setdefault(use, use[0].shared_uses - self.joined_uses.get(id(use[0]), 0))
        if grad is not None:
            held = buffers.get(use)
            buffers[use] = grad if held is None else self.sum_of_gradients(held)
            del held
        del grad
        pending[use] -= 1
        is_whole = pending[use] == 0 and use in buffers
        if is_whole and buffers[use].dtype is not use[0].dtype:  # of the one cast of a weight that layers share
            buffers[use] = ops.to(buffers[use], use[0].dtype)
        return is_whole

    def hand_over(self, uses: Sequence[ParameterUse], buffers: dict[ParameterUse, Tensor]) -> None:
        """Whole gradients of weights change hands."""
        self._flush()
        for use in uses:
            self._hand_over(use, self.shared_gradients if use[0].shared_uses else buffers)

    def _hand_over(self, use: ParameterUse, buffers: dict[ParameterUse, Tensor]) -> None:
        """The gradient changes hands: from here on it is the engine's. Where something else has it too, the
        engine gets a copy (``AccumulateGrad`` in ``torch/csrc/autograd/functions/accumulate_grad.h``).
        It is taken out of ``buffers`` here, since a caller of Python 3.10 holds what it passes until the call is over.
        """
        parameter, kind, live_bytes = use[0], buffers[use].storage.kind, self.total
        num_bytes = parameter.numel * parameter.dtype.num_bytes
        del buffers[use]
        if self.total == live_bytes:
            with self.charged_to(kind):
                self.allocate(num_bytes)
            self.move(2 * num_bytes)
            self._flush()
            self.free(num_bytes, kind)
        part = self.parts_of_passes.get(use[1].partition("_")[0], self.gradient_part)
        self._events.append(GradientReady(parameter, num_bytes, kind, part))
        self._begin_span()

    def _parameter_use(self, parameter: Parameter, node: GraphNode) -> ParameterUse:
        """Equal layers share their parameters here, so inside a stack a parameter is told apart by its section, but for
        one that layers share in the model too."""
        return (parameter, node.section if node.section in self._layers and not parameter.shared_uses else "")

    def _count_dependencies(self, root: GraphNode) -> dict[ParameterUse, int]:
        """Set ``num_pending`` of every node below ``root``; return how many gradients each weight waits for.

        Raises UnequalLayersError where the input of a reused layer is used by something else too: its
        gradients are summed then, and those of a later layer's input are not.
        """
        sources, self._sources = self._sources, {}
        parameters: dict[ParameterUse, int] = {}
        seen = {root}
        stack = [root]
        while stack:
            node = stack.pop()
            for edge in node.inputs:
                if edge is None:
                    continue
                if isinstance(edge, Parameter):
                    use = self._parameter_use(edge, node)
                    parameters[use] = parameters.get(use, 0) + 1
                    continue
                target = edge[0]
                if target in sources and node.section != sources[target]:
                    raise UnequalLayersError
                if target not in seen:
                    seen.add(target)
                    target.num_pending = 0
                    stack.append(target)
                target.num_pending += 1
        return parameters

    def _receive(self, node: GraphNode, index: int, grad: Tensor) -> None:
        while len(node.grads) <= index:
            node.grads.append(None)
        held = node.grads[index]
        node.grads[index] = grad if held is None else self.sum_of_gradients(held)

    def sum_of_gradients(self, held: Tensor) -> Tensor:
        """The sum of two gradients of one tensor, of which one is ``held``."""
        self.move(3 * held.num_bytes)
        if self.accumulates_in_place and not isinstance(held, GradientView):
            return held
        with self.charged_to(held.storage.kind):
            return self.tensor(held.shape, held.dtype)
