"""``torch.einsum`` of two tensors: both rearranged for one batched product, whose result is a view in another order.

Source: ``einsum`` and ``sumproduct_pair`` in torch 2.13 ``aten/src/ATen/native/Linear.cpp``. Each operand is permuted
to (batch, rows, inner) or (batch, inner, columns) and reshaped, which copies where its dimensions do not lie in memory
so that each group is one (``is_view``). Copies are what the product saves.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from vlmplan.architecture.ops.base import Grads, copy, new_of_same_shape, only, to
from vlmplan.architecture.ops.matmuls import matmul
from vlmplan.architecture.tensor import GradientView, GraphNode, Tensor

SEEN_IN_PART = "|"
"""In an order of dimensions, before the one of which a slice is taken: what lies outside of it cannot join it."""


class Groups(NamedTuple):
    """Names of dimensions, a letter each: of both operands and the result, of the first and the result, of both and not
    the result, of the second and the result."""

    batch: str
    rows: str
    inner: str
    columns: str


def is_view(order: str, sizes: Mapping[str, int], groups: Sequence[str]) -> bool:
    """Whether dimensions that lie in memory in this ``order`` can be reshaped to ``groups`` without a copy: those of
    more than one element of each group lie side by side.

    >>> sizes = {"b": 2, "c": 3, "h": 4, "l": 8}
    >>> is_view("bchl", sizes, ("bch", "l")), is_view("bclh", sizes, ("bch", "l"))
    (True, False)
    >>> is_view("bclh", {**sizes, "c": 1, "b": 1}, ("bch", "l")), is_view("b|ch", sizes, ("bc", "h"))
    (True, False)
    """
    wide = [name for name in order if sizes.get(name, 2) > 1]
    for group in groups:
        places = [wide.index(name) for name in group if sizes[name] > 1]
        if any(place + 1 != following for place, following in pairwise(places)):
            return False
    return True


def einsum(
    x: Tensor, y: Tensor, groups: Groups, sizes: Mapping[str, int], *, orders: tuple[str, str], gradient_order: str
) -> Tensor:
    """The result (batch, rows, columns) of x and y, whose dimensions lie in memory in ``orders``.

    ``gradient_order``: that of the result's gradient, which is copied too where it cannot be reshaped. Autocast casts
    both as they come, on a GPU (``aten/src/ATen/autocast_mode.h``, AT_FORALL_LOWER_PRECISION_FP).
    """
    left, right = groups[:3], (groups.batch, groups.inner, groups.columns)
    out = (groups.batch, groups.rows, groups.columns)
    given = x, y  # whoever calls torch holds what is given until the result is there
    if x.tape.autocast is not None:
        x, y = (to(one, x.tape.autocast) for one in given)
    rows = _arranged(x, _shape(left, sizes), copies=not is_view(orders[0], sizes, left))
    columns = _arranged(y, _shape(right, sizes), copies=not is_view(orders[1], sizes, right))
    result = matmul(rows, columns, _shape(out, sizes), rows.shape[-1])
    return result if is_view(gradient_order, sizes, out) else with_copied_gradient(result)


def with_copied_gradient(x: Tensor) -> Tensor:
    """x, whose gradient does not lie in memory as x does: it is copied to be reshaped."""
    return Tensor(x.storage, x.shape, x.dtype, x.tape.node((x,), new_of_same_shape))


def _shape(groups: Sequence[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    shape: list[int] = []
    for group in groups:
        width = 1
        for name in group:
            width *= sizes[name]
        shape.append(width)
    return tuple(shape)


def _arranged(x: Tensor, shape: tuple[int, ...], *, copies: bool) -> Tensor:
    """x as the product takes it; its gradient is a view of the product's."""
    node = x.tape.node((x,), _view_backward)
    x = Tensor(x.storage, x.shape, x.dtype, node)
    return copy(x, *shape) if copies else x.view(*shape)


def _view_backward(node: GraphNode, grads: Grads) -> Sequence[Tensor | None]:
    g = only(grads)
    return (GradientView(g.storage, g.shape, g.dtype),)
