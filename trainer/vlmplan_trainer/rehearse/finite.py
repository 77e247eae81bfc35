"""Numbers that are not known are taken to be finite, and not zero: no loss is NaN, no gradient overflows.

What is asked of all elements has the same answer for each, so it is kept as one element in the shape of all.
"""

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from vlmplan_trainer.rehearse.values import give_value, value_of

aten = torch.ops.aten
LOOKED_FOR = {
    aten.isnan.default: False,
    aten.isinf.default: False,
    aten.isposinf.default: False,
    aten.isneginf.default: False,
}
"""What no number is."""
COMPARED = {aten.eq.Tensor: True, aten.ne.Tensor: False}
"""Of a tensor with itself, which only NaN does not equal (``isfinite`` asks so)."""
COMPARED_WITH_NUMBER = {aten.eq.Scalar: False, aten.ne.Scalar: True}
"""With 0, infinity or NaN."""
OF_ALL_ALIKE = (aten.all.default, aten.any.default, aten.all.dim, aten.any.dim)
OF_EACH = (
    *(aten.logical_not.default, aten.bitwise_not.default, aten.logical_and.default, aten.logical_or.default),
    *(aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.mul.Tensor),
)


def answer(func: Any, args: Any) -> bool | None:
    """What ``func`` says of every element of numbers that are not known; None where that depends on them."""
    if func in LOOKED_FOR:
        return LOOKED_FOR[func]
    if func in COMPARED:
        return COMPARED[func] if args[0] is args[1] else None
    other = args[1]
    if not args[0].is_floating_point():
        return None  # a whole number may well be 0: a class, a place
    is_special = other == 0 or math.isinf(other) or math.isnan(other)
    return COMPARED_WITH_NUMBER[func] if is_special else None


def keep(tensor: Any, value: bool) -> None:
    """``value`` is what ``tensor`` holds everywhere."""
    with unset_fake_temporarily():
        give_value(tensor, torch.tensor(value).expand(tuple(tensor.shape)))


def kept_alike(func: Any, args: Any, output: Any) -> bool:
    """Whether ``func`` is of truth values that are alike, and what it returns has been given its own."""
    if func not in OF_ALL_ALIKE and func not in OF_EACH:
        return False
    values = [_alike(item) for item in args if isinstance(item, torch.Tensor)]
    if not values or any(value is None for value in values) or not isinstance(output, FakeTensor):
        return False
    with unset_fake_temporarily():
        value = values[0] if func in OF_ALL_ALIKE else func(*(torch.tensor(value) for value in values)).item()
    keep(output, bool(value))
    return True


def _alike(tensor: torch.Tensor) -> bool | None:
    """The truth value that all elements share; None where that is not known."""
    value = value_of(tensor)
    if value is None or value.dtype != torch.bool or not value.numel() or any(value.stride()):
        return None
    with unset_fake_temporarily():
        return bool(value.flatten()[0])
