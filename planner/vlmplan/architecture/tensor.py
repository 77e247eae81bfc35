"""Symbolic tensors, weights and graph nodes, and the tape that a forward makes them on.

They know shapes and element types, and hold no numbers. A tensor refers to its tape, so that an operation needs nothing
but its operands, and the tape makes tensors: the two are one module.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from vlmplan.architecture.empty_calls import EmptyCall
from vlmplan.architecture.loop_recorder import LoopRecorder, Turn
from vlmplan.architecture.model_outputs import ModelOutputs
from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.storage import Storage
from vlmplan.architecture.trace import FIRST, HEAD, GradientPart, Hold, Kind
from vlmplan.units import DType

_new = object.__new__


class Tensor:
    """An activation or a gradient: shape, element type, a storage it may share with views, and its graph node."""

    __slots__ = ("dtype", "node", "num_bytes", "numel", "output_index", "shape", "storage", "tape")
    tape: "ForwardTape"

    def __init__(self, storage: Storage, shape: tuple[int, ...], dtype: DType, node: "GraphNode | None" = None) -> None:
        self.storage, self.tape = storage, storage.tape
        self.shape, self.dtype, self.node, self.output_index = shape, dtype, node, 0
        self.numel = prod(shape)
        self.num_bytes = self.numel * dtype.num_bytes

    @property
    def requires_grad(self) -> bool:
        return self.node is not None

    def view(self, *shape: int) -> "Tensor":
        """A tensor on the same storage in another shape, differentiable and free: torch's view, transpose, expand,
        slice.

        The shape may have fewer elements than the storage (a slice); its gradient is then padded back by the
        operation that needs it whole, which the few users of slices write out (``ops.split``).
        """
        view = Tensor(self.storage, shape, self.dtype, self.node)
        view.output_index = self.output_index
        return view

    def detached(self) -> "Tensor":
        """A tensor on the same storage outside the graph."""
        tensor = Tensor.__new__(Tensor)
        tensor.storage, tensor.tape, tensor.shape, tensor.dtype = self.storage, self.tape, self.shape, self.dtype
        tensor.numel, tensor.num_bytes, tensor.node, tensor.output_index = self.numel, self.num_bytes, None, 0
        return tensor


class GradientView(Tensor):
    """A gradient that is a view, so that no other gradient is added to it in place.

    A view keeps its base alive, in backward too (``as_view`` in ``torch/csrc/autograd/VariableTypeUtils.h``), and the
    engine adds in place only where a storage has a single owner (``can_accumulate_inplace`` in
    ``torch/csrc/autograd/input_buffer.cpp``).
    """

    __slots__ = ()


Operand = Tensor | Parameter
Edge = tuple["GraphNode", int] | Parameter | None
"""Where a gradient goes: an output of a node, a weight, or nowhere."""


class GraphNode:
    """One operation of the backward graph.

    ``backward(node, grads)`` gets one gradient per output (None where none arrived) and returns one per input (None
    where ``needs`` says so). It may use ``saved`` and ``meta`` and nothing else, so that the tape keeps alive exactly
    what torch keeps alive.
    """

    __slots__ = (
        "backward",
        "empty_call",
        "gives_last_first",
        "grads",
        "held",
        "inputs",
        "meta",
        "module",
        "needs",
        "num_pending",
        "saved",
        "section",
        "sequence",
        "turn",
    )

    def __init__(
        self,
        inputs: tuple[Edge, ...],
        needs: tuple[bool, ...],
        saved: tuple[Operand | None, ...],
        backward: "Backward",
        meta: Any,
    ) -> None:
        self.inputs, self.needs, self.saved, self.backward, self.meta = inputs, needs, saved, backward, meta
        self.grads: list[Tensor | None] = []
        self.num_pending, self.sequence, self.section = 0, 0, ""
        self.module: Any = None
        self.empty_call: EmptyCall | None = None
        self.gives_last_first = False  # the gradient of the last input is handed on before the others
        self.held: tuple[int, ...] = ()  # handles of views of weights among ``saved``
        self.turn: Turn | None = None


Backward = Callable[[GraphNode, list[Tensor | None]], Sequence[Tensor | None]]


def _keep_gradient(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    for grad in grads:
        if grad is not None:
            grad.tape.leaves.append(grad)
    return ()


def packed_node() -> GraphNode:
    """The node of an operation inside a checkpoint that saves something, until backward runs it again: it says that a
    gradient is needed."""
    return GraphNode((), (), (), _end_packed, None)


def _end_packed(node: GraphNode, grads: list[Tensor | None]) -> Sequence[Tensor | None]:
    return ()


class ForwardTape(LoopRecorder):
    """Makes the tensors of a forward and the graph that its backward runs through, and records them.

    ``autocast`` is the element type of ``torch.autocast``, or None where the model's own types decide.
    ``accumulates_in_place``: see ``Tape``.
    ``fuses_dropout``: dropout keeps a mask of one byte an element, as on CUDA; on CPU it keeps noise of x's type.
    ``makes_loss_inside``: transformers' forward gets the labels, and makes the loss beside its local variables; all of
    its output is held through backward, as ``outputs = model(**batch)`` does. The trainer takes only the logits.
    ``keeps_linear_inputs``: ``F.linear`` is DeepSpeed's, which keeps input and weight whatever needs a gradient.
    ``is_evaluating``: ``torch.no_grad()`` around a model in evaluation mode, but for ``stays_in_training_mode``.
    ``caches_casts``: casts that autocast has cached stay to the end: in evaluation all, as no graph holds them, else
    those outside of layers and those made in ``caching_casts``.
    """

    reuses_layers: bool = True  # one trace serves all equal layers of a stack, see ``first_layer``
    tells_storages_apart: bool = False
    """Whether each storage is logged by itself, as a replay of the allocator needs them."""
    offloads_inputs: bool = False
    """Whether inputs of checkpointed layers wait for backward in host memory."""
    tiles_mlps: bool = False
    """Whether MLPs run on a tile of the tokens at a time (``tiled_mlp``)."""
    has_no_graph: bool = False
    """Whether what runs is under ``torch.no_grad()`` although training goes on."""
    stays_in_training_mode: bool = False
    """Whether nobody calls ``model.eval()`` before a forward without a graph: dropout drops there too."""
    input_gradients: tuple[bool, bool] = (False, False)
    """Of the results of the language model's input embedding, and of other encoders' (``input_gradients``)."""
    reads_head: bool = False
    """Whether Liger's loss reads the head's weight inside the model's forward, as it does in other trainers."""
    switches_adapters_off: bool = False
    """Whether only base layers run (peft's ``disable_adapter``)."""
    runs_without_adapters: bool = False
    """Whether some forwards of the model run so, whatever the one on this tape does."""
    switches_dropout_off: bool = False
    """Whether every ``nn.Dropout`` passes on what it gets (TRL's ``disable_dropout_in_model``)."""
    frees_saved: bool = False
    """Whether backward is in a layer that has run again: what it saved goes as soon as an operation has used it
    (``unpack_hook`` in ``torch/utils/checkpoint.py``), elsewhere when the backward of the operation is over."""

    def __init__(
        self,
        *,
        autocast: DType | None = None,
        accumulates_in_place: bool = True,
        fuses_dropout: bool = True,
        makes_loss_inside: bool = False,
        keeps_linear_inputs: bool = False,
        follows_weights: bool = True,
        is_evaluating: bool = False,
        caches_casts: bool = False,
    ) -> None:
        super().__init__(follows_weights=follows_weights)
        self.autocast, self.is_evaluating, self.caches_casts = autocast, is_evaluating, caches_casts
        self.cached_casts: list[Tensor] | None = [] if caches_casts and is_evaluating else None
        # Casts that ``caching_casts`` shares, by what they are of; and those before the head.
        self.shared_casts: dict[int, Tensor] | None = None
        self._casts: dict[int, Tensor] | None = {} if caches_casts else None
        self._held_casts: list[Tensor] = []
        self.accumulates_in_place = accumulates_in_place
        self.keeps_linear_inputs = keeps_linear_inputs
        self.fuses_dropout = fuses_dropout
        self.makes_loss_inside = makes_loss_inside
        # What the model's output object holds, besides the logits.
        self.outputs = ModelOutputs()
        # Of layers that run in several passes: which part of a gradient each makes, by what stands before the first
        # ``_`` in the names of its sections.
        self.parts_of_passes: Mapping[str, GradientPart] = {}
        # What the outermost ``forward`` holds in local variables.
        self.locals: list[Tensor] = []
        # Copies of the batch that the model's forward and its loss are made of (``Batch.is_cloned``).
        self.cloned: list[Tensor] = []
        # What the ``forward`` of the layer that runs holds in them, as ``_`` in ``x, _ = self.self_attn(...)``.
        self.layer_locals: list[Tensor] = []
        # Results that need a gradient though nothing before them does, and their gradients.
        self.leaves: list[Tensor] = []
        # The widest attention head seen, for which kernels differ between GPUs.
        self.widest_head = 0
        # The spectrograms of the batch, for the towers that hear them.
        self.spectrograms: Tensor | None = None
        # Keys and values of the tokens so far, where text is generated (``attention.KeyCache``).
        self.key_cache: Any = None
        # The nodes whose outputs are inputs of reused layers, with the section of the layer.
        self._sources: dict[GraphNode, str] = {}

    @property
    def is_in_training_mode(self) -> bool:
        """``nn.Module.training``."""
        return self.stays_in_training_mode or not self.is_evaluating

    # -- tensors -------------------------------------------------------------------------------------------------

    def tensor(self, shape: tuple[int, ...], dtype: DType, node: GraphNode | None = None) -> Tensor:
        """A new tensor on a new storage, as the output of ``node``.

        Both are filled here: most of a trace is making tensors, and ``__init__`` costs as much again as all of this.
        """
        tensor, storage = _new(Tensor), _new(self.storage_class)
        tensor.numel = numel = prod(shape)
        tensor.num_bytes = num_bytes = numel * dtype.num_bytes
        storage.tape, storage.kind, storage.born = self, self.kind, self.num_nodes
        storage.num_bytes = self.allocate(num_bytes)
        tensor.storage, tensor.tape = storage, self
        tensor.shape, tensor.dtype, tensor.node, tensor.output_index = shape, dtype, node, 0
        return tensor

    def note_cached(self, x: Tensor, *, grows: bool) -> None:
        """``x`` is kept while text is generated; ``grows``: each token makes it longer."""

    counts_casts_apart = True
    """Whether ``KeptCast`` stands for casts that autocast alone holds."""

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

    @contextmanager
    def caching_casts(self) -> Generator[None]:
        """Where weights are used more than once, or by what goes before forward ends: autocast's cache has one cast of
        each until then. Elsewhere the graph holds the one cast that there is, or the engine counts it."""
        if not self.caches_casts:
            yield
            return
        shared = self.shared_casts = {}
        yield
        self.shared_casts = None
        if not self._runs_backward:  # else it ends with the layer that runs again
            self._held_casts += [cast.detached() for cast in shared.values()]

    def takes_cast_apart(self, weight: Parameter, num_bytes: int) -> bool:
        """Whether a weight that is cast now belongs to a layer that is run again in backward, or multiplies in a layer
        what has no gradient: nothing but autocast holds the cast, until forward ends (``KeptCast``). Then it is
        noted."""
        is_apart = self.counts_casts_apart and self.caches_casts and (self.is_packing or weight.reads_constants)
        if is_apart:
            self.keep_cast(weight, num_bytes)
        return is_apart

    def cast_cache(self, weight: Parameter) -> dict[int, Tensor] | None:
        """The casts of which there is one of each until forward ends, by what they are of: of what is used more than
        once and what no graph holds (a Linear whose input has no gradient, a result that is dropped). None inside of
        layers, whose casts the graph holds, or the engine counts, but for weights that layers share."""
        if weight.shared_uses and self._key in self._layers and not (self._runs_backward or self.is_packing):
            return self._layer_casts if self.caches_casts else None
        if self.shared_casts is not None or self._key in self._layers or self._runs_backward or self.has_no_graph:
            return self.shared_casts
        return self._casts

    def hold_cast(self, cast: Tensor) -> None:
        """A cast that no graph holds is there until forward ends: of an adapter in a stack's first layer, whose input
        has no gradient. That of later layers has one, where the first has adapters too."""
        if self.caches_casts and not self._runs_backward and self._key.endswith(FIRST):
            self._held_casts.append(cast.detached())

    @contextmanager
    def head(self) -> Generator[None]:
        """The section of the head, which casts its weight by rules of its own."""
        self._held_casts += [cast.detached() for cast in (self._casts or {}).values()]
        self._casts = None
        with self.section(HEAD):
            yield

    def end_forward(self) -> None:
        """What autocast has cached goes, and what the outermost ``forward`` held."""
        self._held_casts.clear()
        self._layer_casts.clear()
        self.locals.clear()

    def drop_outputs(self, *, keeps_leaves: bool = False) -> None:
        """The step forgets what the model returned, and with it the graph, unless the loop ``keeps_leaves``."""
        for held in (self.outputs, self._attached, *(() if keeps_leaves else (self.leaves,))):
            held.clear()

    # -- graph ---------------------------------------------------------------------------------------------------

    def node(
        self,
        inputs: tuple[Operand | None, ...],
        backward: Backward,
        saved: tuple[Operand | None, ...] = (),
        meta: Any = None,
        view_of: Parameter | None = None,
    ) -> GraphNode | None:
        """Open the graph node of an operation, before its output is allocated; None if no input needs a gradient.

        ``view_of``: a weight that torch saves as a view, which keeps the storage when ZeRO-3 takes the weight away. A
        weight saved as itself does not.
        """
        if self.is_evaluating or self.has_no_graph:
            return None
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
        if self._packs and saved:
            return packed_node()
        node = _new(GraphNode)  # filled here, as in ``tensor``
        node.inputs, node.needs, node.saved, node.backward, node.meta = (*edges,), (*needs,), saved, backward, meta
        node.grads, node.num_pending, node.sequence, node.section = [], 0, self.num_nodes, self._key
        node.module = self.modules[-1] if self.modules else None
        node.empty_call, node.held, node.gives_last_first, node.turn = self.empty_call, (), False, self.turn
        if view_of is not None:
            self.hold_view(node, view_of)
        return node

    def hold_view(self, node: GraphNode, weight: Parameter) -> None:
        """A view of ``weight`` is among what the node saves."""
        if self.follows_weights and not (self._is_phantom or self._packs):
            node.held = (*node.held, -node.sequence if node.held else node.sequence)
            self._events.append(Hold(node.held[-1], weight))

    def leaf(self, x: Tensor) -> Tensor:
        """``x.requires_grad_()``: backward goes on to it. It stays, and its gradient with it, until the graph goes, as
        ``AccumulateGrad`` holds it."""
        if x.node is not None or self.is_evaluating or self.has_no_graph:
            return x
        self.num_nodes += 1
        node = GraphNode((), (), (), _keep_gradient, None)
        node.sequence, node.section = self.num_nodes, self._key
        node.module = self.modules[-1] if self.modules else None
        self.leaves.append(x.detached())
        x.node = node
        return x

    def save(self, node: GraphNode | None, *outputs: Tensor) -> None:
        """Keep outputs of an operation for its backward, or inputs that it saves at its end."""
        if node is None:
            return
        if self._packs or self._stop_after is not None:
            self._count_saved(len(outputs))
        if not self._packs:
            node.saved = (*node.saved, *[output.detached() for output in outputs])

    def rootless_node(self, saved: tuple[Tensor, ...], backward: Backward, meta: Any) -> GraphNode:
        """The node of a checkpoint whose inputs need no gradient but whose weights do."""
        self.num_nodes += 1
        node = GraphNode((None,) * len(saved), (False,) * len(saved), saved, backward, meta)
        node.sequence, node.section = self.num_nodes, self._key
        return node

    def note_source(self, node: GraphNode) -> None:
        """``node`` makes the input of the layer that runs, which is reused for later ones."""
        self._sources[node] = self._key
