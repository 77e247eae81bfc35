"""How the layers of a stack are called: each with a context of its own, where they are not all given the same."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any

from vlmplan.architecture.tensor import Tensor


class Calls:
    """Passes each layer a context of its own, which is all that it keeps of them where it runs again in backward.

    ``call(context, layer, *inputs)`` calls the layer; else it is given x and the context.
    """

    def __init__(self, context_of: Callable[[Any], Any], call: Callable[..., Any] | None = None) -> None:
        self.context_of, self.call = context_of, call or called_with

    def __call__(self, layer: Any, *inputs: Tensor) -> Any:
        return self.of(layer)(layer, *inputs)

    def of(self, layer: Any) -> Callable[..., Any]:
        return partial(self.call, self.context_of(layer))


def called_with(context: Any, layer: Any, x: Tensor) -> Tensor:
    return layer(x, context)


def with_mask_by_position(context: Any) -> tuple[Callable[..., Tensor], Sequence[Tensor]]:
    """What calls a layer with x and the ``mask`` of a context, and that mask, if there is one: of what a layer gets by
    position a checkpoint knows, which offloads it; all else of the context is part of what runs again."""
    without = copy(context)
    without.mask = None

    def call(layer: Any, x: Tensor, *mask: Tensor) -> Tensor:
        own = copy(without)
        own.mask = mask[0] if mask else None
        return layer(x, own)

    return call, () if context.mask is None else (context.mask,)


def call_of(call: Callable[..., Any], layer: Any) -> Callable[..., Any]:
    """What calls a layer: of ``Calls`` its own."""
    return call.of(layer) if isinstance(call, Calls) else call
