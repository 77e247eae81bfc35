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

from collections.abc import Callable, Sequence
from math import prod
from sys import getrefcount
from typing import Any, ClassVar

from vlmplan.architecture.autograd import AutogradEngine
from vlmplan.architecture.checkpointing import checkpoint_backward
from vlmplan.architecture.first_layer import FirstLayer, LayerInput
from vlmplan.architecture.tensor import Backward, Edge, Kind, Node, Operand, Parameter, Storage, Tensor
from vlmplan.architecture.trace import Hold
from vlmplan.units import DType

_new = object.__new__
ONE_HOLDER = 2
"""``sys.getrefcount`` of what one object refers to: its own argument counts."""
PACKED = Node((), (), (), lambda node, grads: (), None)
"""What stands for the operations inside a checkpoint until backward runs them again: that a gradient will be needed."""


class Tape(AutogradEngine):
    """Runs one micro batch, and records it.

    ``autocast`` is the element type of ``torch.autocast``, or None where the model's own types decide.
    ``accumulates_in_place``: see ``AutogradEngine``.
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
        super().__init__(accumulates_in_place=accumulates_in_place, follows_weights=follows_weights)
        self.autocast = autocast
        self.keeps_linear_inputs = keeps_linear_inputs
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
