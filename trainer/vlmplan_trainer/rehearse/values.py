"""What small fake tensors are known to hold: an attribute with the real tensor.

Views share the real tensor's storage as they share the fake one's, so what is written into one is read in all; where it
is not known what is written, the storage says so.
"""

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

VALUE = "_rehearsed_value"
"""The attribute of a fake tensor that holds its real value."""
WRITTEN_OVER = "_rehearsed_unknown"
"""Of a real tensor's storage: something that is not known was written there."""


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real value of a tensor; None if it is not known."""
    return known_value(tensor) if isinstance(tensor, FakeTensor) else tensor


def known_value(fake: Any) -> torch.Tensor | None:
    value = fake.__dict__.get(VALUE)
    return None if value is None or hasattr(value.untyped_storage(), WRITTEN_OVER) else value


def give_value(fake: Any, value: torch.Tensor | None) -> None:
    """``fake`` holds ``value`` from now on."""
    setattr(fake, VALUE, value)


def forget_value(fake: Any) -> None:
    """Something that is not known has been written into ``fake``, and so into all views of the same storage."""
    value = fake.__dict__.pop(VALUE, None)
    if value is not None:
        setattr(value.untyped_storage(), WRITTEN_OVER, True)


def own_elements(fake: Any) -> None:
    """``fake`` is about to be written into: what is kept as one element in the shape of all becomes that many."""
    value = known_value(fake)
    if value is not None and value.numel() > 1 and 0 in value.stride():
        forget_value(fake)
        with unset_fake_temporarily():
            give_value(fake, value.clone())
