"""Weights of a symbolic model, and what uses them."""

from math import prod

from vlmplan.errors import InputError
from vlmplan.units import DType


class Parameter:
    """A weight of the model: a leaf of the graph, whose own bytes the engine model counts, not the tape.

    ``dtype`` and ``requires_grad`` are set when a recipe is applied; ``stored_bytes`` only where the weight does not
    take ``numel`` times the width of ``dtype`` (packed weights), ``packed_bytes`` of which are its elements.
    ``meets_autocast`` is False where no operation that uses it itself is one that autocast casts for (``grouped_mm``,
    sums, products of its views). ``reads_constants``: what it is multiplied with has no gradient, so that no graph
    holds a cast of it. ``shared_uses``: how many layers of a stack use it where several hold it (Zamba), 0 for a
    layer's own. ``is_constant``: transformers' class computes it, and freezes it. ``num_axes``: of torch's tensor,
    which ``shape`` may have as a matrix (convolutions). ``is_updated`` is False where it gets a gradient that no
    optimizer reads (``engines.flat_units``).
    """

    __slots__ = (
        "dtype",
        "is_constant",
        "is_updated",
        "meets_autocast",
        "num_axes",
        "numel",
        "packed_bytes",
        "reads_constants",
        "requires_grad",
        "shape",
        "shared_uses",
        "stored_bytes",
    )

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.num_axes = len(shape)
        self.numel = prod(shape)
        if self.numel <= 0:
            raise InputError(
                f"config.json: its sizes leave nothing of a weight ({' x '.join(map(str, shape))} elements)"
            )
        self.dtype = DType.BFLOAT16
        self.requires_grad = True
        self.stored_bytes: int | None = None
        self.packed_bytes = 0
        self.meets_autocast = True
        self.reads_constants = False
        self.shared_uses = 0
        self.is_constant = False
        self.is_updated = True

    def layer_of(self, layer: int | None) -> int | None:
        """The layer that it is a weight of, where one of ``layer`` uses it; None where several share it."""
        return None if self.shared_uses else layer

    @property
    def num_bytes(self) -> int:
        return self.numel * self.dtype.num_bytes if self.stored_bytes is None else self.stored_bytes


class WeightUser:
    """What ZeRO-3 sees use weights: a module, or what stands for one."""

    parameters_by_name: dict[str, Parameter]
    is_leaf = False
    """Whether the weights are those of all modules inside, which are not seen then (``leaf_module``)."""
    reads_head = False
    """Whether it is the model whose loss reads the weight of the head (``read_weights.ReadHead``)."""
    calls_head = False
    """Whether that model calls the head besides."""
    is_container = False
    """Whether it calls others and has no weight of its own."""
    is_of_adapter = False
    """Whether it is an adapter's, though it uses weights of others too."""
    reads: frozenset[int] = frozenset()
    """Ids of those that are other modules', which it reads: a first forward gathers each when it comes to it."""
