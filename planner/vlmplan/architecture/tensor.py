"""Symbolic tensors, weights and graph nodes: shapes and element types without numbers."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, Any

from vlmplan.errors import InputError
from vlmplan.units import DType

if TYPE_CHECKING:
    from vlmplan.architecture.tape import Tape


class Kind(IntEnum):
    """The component of the estimate that a storage is charged to."""

    ACTIVATION = 0
    LOGITS = 1
    TEMPORARY = 2
    GRADIENT = 3  # of a weight, until the engine takes it


class Storage:
    """Bytes on the device: allocated when made, freed when the last reference goes.

    CPython frees an object with its last reference, as torch frees a storage, so what a ``forward`` keeps in local
    variables here lives as long as in the code it describes.
    """

    __slots__ = ("born", "kind", "num_bytes", "tape")

    def fill(self, tape: "Tape", num_bytes: int) -> None:
        """Allocate the bytes, once. Not ``__init__``: calling a class costs as much again as all of this."""
        self.tape, self.kind, self.born = tape, tape.kind, tape.num_nodes
        self.num_bytes = tape.allocate(num_bytes)

    def __del__(self) -> None:
        tape = self.tape
        if self.born < tape.oldest_own:
            tape.free_shared(self.num_bytes, self.kind)
        else:
            tape.free(self.num_bytes, self.kind)

    def shrink(self, num_bytes: int) -> None:
        """Free all but ``num_bytes``: where one storage stands for several that go one after the other."""
        self.tape.free(self.num_bytes - num_bytes, self.kind)
        self.num_bytes = num_bytes


class Parameter:
    """A weight of the model: a leaf of the graph, whose own bytes the engine model counts, not the tape.

    ``dtype`` and ``requires_grad`` are set when a recipe is applied; ``stored_bytes`` only where the weight does not
    take ``numel`` times the width of ``dtype`` (4-bit weights).
    """

    __slots__ = ("dtype", "numel", "requires_grad", "shape", "stored_bytes")

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.numel = prod(shape)
        if self.numel <= 0:
            raise InputError(
                f"config.json: its sizes leave nothing of a weight ({' x '.join(map(str, shape))} elements)"
            )
        self.dtype = DType.BFLOAT16
        self.requires_grad = True
        self.stored_bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        return self.numel * self.dtype.num_bytes if self.stored_bytes is None else self.stored_bytes


class Tensor:
    """An activation or a gradient: shape, element type, a storage it may share with views, and its graph node."""

    __slots__ = ("dtype", "node", "num_bytes", "numel", "output_index", "shape", "storage", "tape")

    def __init__(self, storage: Storage, shape: tuple[int, ...], dtype: DType, node: "Node | None" = None) -> None:
        self.storage, self.tape = storage, storage.tape
        self.shape, self.dtype, self.node, self.output_index = shape, dtype, node, 0
        self.numel = prod(shape)
        self.num_bytes = self.numel * dtype.num_bytes

    @property
    def requires_grad(self) -> bool:
        return self.node is not None

    def view(self, *shape: int) -> "Tensor":
        """The same storage in another shape, differentiable and free: torch's view, transpose, expand, slice.

        The shape may have fewer elements than the storage (a slice); its gradient is then padded back by the
        operation that needs it whole, which the few users of slices write out (``ops.split``).
        """
        view = Tensor(self.storage, shape, self.dtype, self.node)
        view.output_index = self.output_index
        return view

    def detached(self) -> "Tensor":
        """The same storage outside the graph."""
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
Edge = tuple["Node", int] | Parameter | None
"""Where a gradient goes: an output of a node, a weight, or nowhere."""


class Node:
    """One operation of the backward graph.

    ``backward(node, grads)`` gets one gradient per output (None where none arrived) and returns one per input (None
    where ``needs`` says so). It may use ``saved`` and ``meta`` and nothing else, so that the tape keeps alive exactly
    what torch keeps alive.
    """

    __slots__ = (
        "backward",
        "grads",
        "holds_weight",
        "inputs",
        "meta",
        "module",
        "needs",
        "num_pending",
        "saved",
        "section",
        "sequence",
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
        self.num_pending = 0
        self.sequence = 0
        self.section = ""
        self.module: Any = None
        self.holds_weight = False  # a view of a weight is among ``saved``


Backward = Callable[[Node, list[Tensor | None]], Sequence[Tensor | None]]
