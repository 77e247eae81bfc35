"""What a model holds of a layer until the next one has returned.

Where transformers' model calls ``outputs = block(...)``, the attention weights among them are there that long, those
of the last layer until the model returns (GPT-J, BLOOM, Falcon, ...); those of fused kernels are none.
"""

from collections.abc import Callable

from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.modules import Module, Stack
from vlmplan.architecture.tensor import Tensor
from vlmplan.units import DType


class HoldingContext:
    """What every layer is called with besides the hidden states. ``returned``: shape and type of what the layer before
    has returned beside them, None for the first and where it is nothing. ``is_saved``: the graph holds that, too.
    A tape that tells storages apart holds what has been returned itself; others, which run one layer for all equal
    ones, have as much in its place."""

    __slots__ = ("backend", "is_saved", "mask", "returned")

    def __init__(self, backend: AttentionBackend, mask: Tensor | None) -> None:
        self.backend, self.mask = backend, mask
        self.returned: tuple[tuple[int, ...], DType] | None = None
        self.is_saved = True

    def held(self, x: Tensor) -> Tensor | None:
        """What the model holds while the layer runs that takes x; None where autograd holds it anyway."""
        if x.tape.tells_storages_apart and not x.tape.is_replaying:
            before = x.tape.outputs.of_last_layer
            return before.pop() if before else None
        is_in_graph = x.requires_grad and not (x.tape.is_packing or x.tape.is_evaluating)
        is_held_anyway = is_in_graph and self.is_saved
        if self.returned is None or is_held_anyway or x.tape.is_replaying:
            return None
        return x.tape.tensor(*self.returned)

    def hold(self, weights: Tensor | None, *, dropout: float = 0.0) -> None:
        """The layer that ends returns ``weights`` too. ``dropout``: the probability with which they are dropped before,
        where they stay in the softmax's type: then the graph holds what autocast makes of them, and not them."""
        self.returned = None if weights is None else (weights.shape, weights.dtype)
        if weights is not None and weights.tape.tells_storages_apart and not weights.tape.is_replaying:
            weights.tape.outputs.of_last_layer.append(weights.detached())
        if weights is not None and dropout > 0:
            tape = weights.tape
            self.is_saved = tape.switches_dropout_off or tape.autocast in (None, weights.dtype)


def stack_of_holding(layer: Callable[[], Module], num_layers: int) -> Stack:
    """``num_layers`` equal layers, of which the first, a kind of its own, has none before. ``layer`` makes one."""
    kinds = [layer() for _ in range(min(num_layers, 2))]
    stack = Stack(kinds, [int(index > 0) for index in range(num_layers)], label="layers")
    stack.alike = [0] * len(kinds)
    return stack
