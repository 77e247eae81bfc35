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
from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount
from typing import Any, ClassVar

from vlmplan.architecture.checkpointing import checkpoint_backward
from vlmplan.architecture.first_layer import FirstLayer, LayerInput, UnlikeLayersError
from vlmplan.architecture.recorder import Recorder
from vlmplan.architecture.tensor import Backward, Edge, Kind, Node, Operand, Parameter, Storage, Tensor
from vlmplan.architecture.trace import Drop, GradientReady, Hold
from vlmplan.units import DType

_new = object.__new__

ParameterUse = tuple[Parameter, str]
"""A parameter, and the section that uses it where it stands for the parameters of several equal layers."""


ONE_HOLDER = 2
"""``sys.getrefcount`` of what one object refers to: its own argument counts."""
PACKED = Node((), (), (), lambda node, grads: (), None)
"""What stands for the operations inside a checkpoint until backward runs them again: that a gradient will be needed."""


class Tape(Recorder):
    """Runs one micro batch, and records it.

    ``autocast`` is the element type of ``torch.autocast``, or None where the model's own types decide.
    ``accumulates_in_place``: two gradients of one tensor are summed into the first, as torch's engine does unless a
    dispatch mode watches it (``InputBuffer::accumulate``); a rehearsal under a dispatch mode allocates the sum.
    ``fuses_dropout``: dropout keeps a mask of one byte an element, as on CUDA; on CPU it keeps noise of x's type.
    ``makes_loss_inside``: transformers' forward gets the labels, and makes the loss beside its local variables; all of
    its output is held through backward, as ``outputs = model(**batch)`` does. The trainer takes only the logits.
    ``keeps_linear_inputs``: ``F.linear`` is DeepSpeed's, which keeps input and weight whatever needs a gradient.
    """

    storage_class: ClassVar[type[Storage]] = Storage
    runs_every_call: ClassVar[bool] = False  # of kernels that could be recorded at once, see ``attention.joins_calls``
    joins_layers: bool = True  # the first of a stack stands for later ones, see ``first_layer``

    def __init__(
        self,
        *,
        autocast: DType | None = None,
        accumulates_in_place: bool = True,
        fuses_dropout: bool = True,
        makes_loss_inside: bool = False,
        keeps_linear_inputs: bool = False,
        follows_weights: bool = True,
    ) -> None:
        super().__init__(follows_weights=follows_weights)
        self.autocast = autocast
        self.keeps_linear_inputs = keeps_linear_inputs
        self.accumulates_in_place = accumulates_in_place
        self.fuses_dropout = fuses_dropout
        self.makes_loss_inside = makes_loss_inside
        self.modules: list[Any] = []
        # What the model's output object holds, besides the logits (image_hidden_states).
        self.outputs: list[Tensor] = []
        # What the outermost ``forward`` holds in local variables.
        self.locals: list[Tensor] = []
        # The widest attention head seen, for which kernels differ between GPUs.
        self.widest_head = 0
        self.num_nodes = 0
        # Activation checkpointing: while packing, nodes are made but keep nothing; replaying ends at the last tensor
        # that is saved.
        self._packs = False
        self._num_saved = 0
        self._stop_after: int | None = None
        # What made the input of layers that stand for others, with their section.
        self._sources: dict[Node, str] = {}

    def again(self) -> "Tape":
        """A new tape like this one, on which every layer stands for itself."""
        tape = type(self)(
            autocast=self.autocast,
            accumulates_in_place=self.accumulates_in_place,
            fuses_dropout=self.fuses_dropout,
            makes_loss_inside=self.makes_loss_inside,
            keeps_linear_inputs=self.keeps_linear_inputs,
            follows_weights=self.follows_weights,
        )
        tape.joins_layers = False
        return tape

    # -- tensors -------------------------------------------------------------------------------------------------

    def tensor(self, shape: tuple[int, ...], dtype: DType, node: Node | None = None) -> Tensor:
        """A new tensor on a new storage, as the output of ``node``."""
        tensor, storage = _new(Tensor), _new(self.storage_class)
        tensor.numel = numel = prod(shape)
        tensor.num_bytes = num_bytes = numel * dtype.num_bytes
        storage.fill(self, num_bytes)
        tensor.storage, tensor.tape = storage, self
        tensor.shape, tensor.dtype, tensor.node, tensor.output_index = shape, dtype, node, 0
        return tensor

    def gradient(self, shape: tuple[int, ...], dtype: DType) -> Tensor:
        """A new tensor for the gradient of a weight."""
        before, self.kind = self.kind, Kind.GRADIENT
        try:
            return self.tensor(shape, dtype)
        finally:
            self.kind = before

    def leave_model(self) -> None:
        """The outermost ``forward`` returns: nothing but logits stays, where the loss is made outside of it."""
        if not self.makes_loss_inside:
            self.locals.clear()
            self.outputs.clear()

    # -- graph ---------------------------------------------------------------------------------------------------

    def node(
        self,
        inputs: tuple[Operand | None, ...],
        backward: Backward,
        saved: tuple[Operand | None, ...] = (),
        meta: Any = None,
        view_of: Parameter | None = None,
    ) -> Node | None:
        """Open the graph node of an operation, before its output is allocated; None if no input needs a gradient.

        ``view_of``: a weight that torch saves as a view, which keeps the storage when ZeRO-3 takes the weight away. A
        weight saved as itself does not.
        """
        edges: list[Edge] = []
        needs: list[bool] = []
        for operand in inputs:
            edge: Edge = None
            if isinstance(operand, Tensor):
                if operand.node is not None:
                    edge = (operand.node, operand.output_index)
            elif operand is not None and operand.requires_grad:
                edge = operand
            edges.append(edge)
            needs.append(edge is not None)
        if True not in needs:
            return None
        if self._packs or self._stop_after is not None:
            self._count_saved(len(saved) - saved.count(None))
        self.num_nodes += 1
        if self._packs:
            return PACKED
        holds_weight = view_of is not None and self.follows_weights and not self._is_phantom
        node = Node(tuple(edges), tuple(needs), saved, backward, meta)
        node.sequence = self.num_nodes
        node.section = self._key
        if self.modules:
            node.module = self.modules[-1]
        if holds_weight:
            node.holds_weight = True
            self._events.append(Hold(node.sequence, view_of))
        return node

    def save(self, node: Node | None, *outputs: Tensor) -> None:
        """Keep outputs of an operation for its backward, or inputs that it saves at its end."""
        if node is None:
            return
        if self._packs or self._stop_after is not None:
            self._count_saved(len(outputs))
        if not self._packs:
            node.saved = (*node.saved, *[output.detached() for output in outputs])

    def _count_saved(self, count: int) -> None:
        self._num_saved += count
        if self._stop_after is not None and count and self._num_saved >= self._stop_after:
            self._is_phantom = True

    # -- layers ------------------------------------------------------------------------------------------------------

    def lend(self, x: Tensor) -> Tensor:
        """The input of a first layer, which the running section is, as that layer gets it (``first_layer``)."""
        self.num_nodes += 1
        first = FirstLayer(self.num_nodes)
        self._watch(first)
        storage = _new(LayerInput)
        storage.tape, storage.kind, storage.born = self, x.storage.kind, first.start
        storage.num_bytes, storage.whole = x.storage.num_bytes, x.storage
        lent = Tensor(storage, x.shape, x.dtype, x.node)
        lent.output_index = x.output_index
        return lent

    def stand_for(self, key: str, lent: Tensor, result: Tensor) -> None:
        """Let the layer that has just run stand for the later ones of section ``key``, if ``result`` is like its input.

        A result that something holds besides is saved by its own layer, which no first layer's input is.
        """
        if self._is_like(lent, result) and getrefcount(result.storage) == ONE_HOLDER:
            self._stand_for(key, result.storage)
            if lent.node is not None:
                self._sources[lent.node] = self._key

    def _is_like(self, x: Tensor, y: Tensor) -> bool:
        """Whether a layer that takes x does the same with y; ZeRO-3 asks which module a gradient goes to."""
        if (x.shape, x.dtype, x.storage.num_bytes) != (y.shape, y.dtype, y.storage.num_bytes):
            return False
        if x.node is None or y.node is None:
            return x.node is y.node
        enclosing = self.modules[-1:]
        return ([x.node.module] == enclosing) is ([y.node.module] == enclosing)

    # -- checkpointing -------------------------------------------------------------------------------------------

    def checkpoint(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """``function(*inputs)`` under activation checkpointing: only inputs are kept, backward runs it again.

        Every tensor with a gradient that the function uses must be among the inputs.
        Source: ``torch.utils.checkpoint`` with ``use_reentrant=False``, transformers' default since 5.0.
        """
        self._packs, self._num_saved = True, 0
        try:
            out = function(*inputs)
        finally:
            self._packs = False
        if out.node is None:
            return out
        saved = tuple([x.detached() for x in inputs])
        meta = (self, function, self._num_saved)
        # The edges to the inputs are kept although the node exists for the sake of the weights inside as well.
        node = self.node(inputs, checkpoint_backward, saved, meta)
        if node is None:
            node = self._rootless_node(saved, meta)
        out.node, out.output_index = node, 0
        return out

    def _rootless_node(self, saved: tuple[Tensor, ...], meta: Any) -> Node:
        """The node of a checkpoint whose inputs need no gradient but whose weights do."""
        count = len(saved)
        node = Node((None,) * count, (False,) * count, saved, checkpoint_backward, meta)
        self.num_nodes += 1
        node.sequence, node.section = self.num_nodes, self._key
        return node

    def replay(self, function: Callable[..., Tensor], inputs: Sequence[Tensor], num_saved: int) -> Tensor:
        """Run ``function`` again with its graph, up to the last tensor that its backward needs."""
        work, self._work = self._work, self._sections[self._key].recompute_work
        self._num_saved, self._stop_after, self._recomputed = 0, num_saved, []
        try:
            return function(*inputs)
        finally:
            self._stop_after, self._is_phantom, self._work = None, False, work

    def take_recomputed(self) -> Sequence[Any]:
        """The modules with frozen weights that the last replay has run."""
        modules, self._recomputed = self._recomputed or (), None
        return modules

    # -- backward ------------------------------------------------------------------------------------------------

    def run_backward(self, loss: Tensor) -> None:
        """The backward of the whole micro batch, from ``loss``."""
        self._close_gap()
        self._runs_backward = True
        assert loss.node is not None, "the loss needs no gradient: nothing is trainable"
        self._enter(loss.node.section)
        grads: list[Tensor | None] = [self.tensor(loss.shape, loss.dtype)]
        root = loss.node
        loss.node = None
        self.backpropagate(root, grads)

    def backpropagate(
        self, root: Node, grads: list[Tensor | None], output_index: int = 0, recomputed: Sequence[Any] = ()
    ) -> None:
        """Run the graph below ``root`` as torch's engine does: by sequence number, latest first.

        ``grads`` holds the gradient of the root, and is emptied: only the graph refers to it from here on.
        ``recomputed``: modules whose weights wait for the first module's backward to end.
        Source: ``torch/csrc/autograd/engine.cpp`` (``compareByNode``: weights' accumulators before everything else).
        """
        pending_parameters = self._count_dependencies(root)
        buffers: dict[ParameterUse, Tensor] = {}
        grad = grads.pop()
        assert grad is not None
        assert not grads
        _receive(self, root, output_index, grad)
        del grad
        ready: list[tuple[int, Node]] = [(-root.sequence, root)]
        fetched: Any = None
        has_input_grad = False
        while ready:
            node = heapq.heappop(ready)[1]
            if fetched is not None and (node.module is not fetched or node.section != self._key):
                self._leave(fetched, recomputed, has_input_grad=has_input_grad)
                fetched, recomputed = None, ()
            if node.section != self._key:
                self._enter(node.section)
            if fetched is None and node.module is not None:
                fetched, has_input_grad = node.module, False
                self.fetch(fetched)
            results = list(node.backward(node, node.grads))
            edges, node.grads, node.saved, node.inputs = node.inputs, [], (), ()
            if node.holds_weight:
                self._drops.append(Drop(node.sequence))
            for position, edge in enumerate(edges):
                if isinstance(edge, Parameter):
                    use = self._parameter_use(edge, node)
                    self._receive_parameter_gradient(use, results, position, buffers, pending_parameters)
                elif edge is not None:
                    has_input_grad |= edge[0].module is not fetched
                    if self._hand_on(edge, results, position):
                        heapq.heappush(ready, (-edge[0].sequence, edge[0]))
        self._leave(fetched, recomputed, has_input_grad=has_input_grad)

    def _leave(self, module: Any, recomputed: Sequence[Any], *, has_input_grad: bool) -> None:
        """A module's backward is over: its weights go if its input has a gradient, and those that waited for it."""
        if module is not None:
            self.release(module) if has_input_grad else self.keep(module)
        self.end_recomputation(recomputed)

    def _hand_on(self, edge: tuple[Node, int], results: list[Tensor | None], position: int) -> bool:
        """Give a result to the node before, and forget it; whether that node has all of its gradients now."""
        target, index = edge
        result, results[position] = results[position], None
        if result is not None:
            _receive(self, target, index, result)
        target.num_pending -= 1
        return target.num_pending == 0

    def _receive_parameter_gradient(
        self,
        use: ParameterUse,
        results: list[Tensor | None],
        position: int,
        buffers: dict[ParameterUse, Tensor],
        pending: dict[ParameterUse, int],
    ) -> None:
        grad, results[position] = results[position], None
        if grad is not None:
            held = buffers.get(use)
            buffers[use] = grad if held is None else accumulated(self, held, grad)
            del held
        del grad
        pending[use] -= 1
        if pending[use] == 0 and use in buffers:
            self._flush()
            self._hand_over(use[0], buffers.pop(use))

    def _hand_over(self, parameter: Parameter, grad: Tensor) -> None:
        """The gradient changes hands: from here on it is the engine's."""
        kind = grad.storage.kind
        del grad
        self._events.append(GradientReady(parameter, parameter.numel * parameter.dtype.num_bytes, kind))
        self._begin_span()

    def _parameter_use(self, parameter: Parameter, node: Node) -> ParameterUse:
        """Equal layers share their parameters here, so inside a stack a parameter is told apart by its section."""
        return (parameter, node.section if node.section in self._layers else "")

    def _count_dependencies(self, root: Node) -> dict[ParameterUse, int]:
        """Set ``num_pending`` of every node below ``root``; return how many gradients each weight waits for.

        Raises UnlikeLayersError where the input of a layer that stands for others is used by something else too: its
        gradients are summed up then, which those of a later layer's input are not.
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
                    raise UnlikeLayersError
                if target not in seen:
                    seen.add(target)
                    target.num_pending = 0
                    stack.append(target)
                target.num_pending += 1
        return parameters


def accumulated(tape: Tape, held: Tensor, new: Tensor) -> Tensor:
    """The sum of two gradients of one tensor."""
    tape.move(3 * held.num_bytes)
    if tape.accumulates_in_place:
        return held
    with tape.charged_to(held.storage.kind):
        return tape.tensor(held.shape, held.dtype)


def _receive(tape: Tape, node: Node, index: int, grad: Tensor) -> None:
    while len(node.grads) <= index:
        node.grads.append(None)
    held = node.grads[index]
    node.grads[index] = grad if held is None else accumulated(tape, held, grad)
