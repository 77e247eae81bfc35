"""What operations return, remembered by the shapes of what they are given.

torch's fake tensors keep such a memory of their own, but finding an entry and making a tensor from it takes them some
200 microseconds an operation, ten times as long as it takes here: a rehearsal is a few 10,000 operations of a few 100
kinds. What they would not remember is not remembered here either, except that views are known by their storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vlmplan_trainer.rehearse.work import OperationWork

PLAIN = frozenset(
    (int, float, bool, type(None), str, torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size)
)
"""Kinds of arguments that are told by their value."""
NEVER = (
    torch.Tag.data_dependent_output,
    torch.Tag.inplace_view,
)


class UnknownShapeError(Exception):
    """An argument that is not told by its shape."""


@dataclass(slots=True)
class Output:
    """One tensor of a result: an input as it is, a view of an input, or a new one.

    ``offset`` counts from where the input begins; ``state`` are the attributes of the fake tensor.
    """

    same_as: int = -1
    view_of: int = -1
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: Any = None
    device: Any = None
    state: dict[str, Any] = field(default_factory=dict)
    is_new: bool = False


@dataclass(slots=True)
class KnownOutputs:
    """``kind`` is that of the sequence, None for a single tensor; ``outputs`` None where nothing is returned."""

    kind: type | None
    outputs: tuple[Output, ...] | None
    flops: int = 0
    work: OperationWork | None = None


def signature(args: Sequence[Any], kwargs: dict[str, Any], tensors: list[FakeTensor]) -> tuple[Any, ...]:
    """What tells the shapes of a result; ``tensors`` gets the fake tensors in order. Raises UnknownShapeError.

    Operations that make a tensor and are told no element type take the default, which is the model's while it is built.
    """
    key: list[Any] = [torch.get_default_dtype()]
    _describe(args, key, tensors)
    if kwargs:
        key.extend(kwargs)
        _describe(kwargs.values(), key, tensors)
    return tuple(key)


def _describe(items: Any, key: list[Any], tensors: list[FakeTensor]) -> None:
    for item in items:
        kind = type(item)
        if kind in PLAIN:
            key.append(kind)
            key.append(item)
        elif isinstance(item, FakeTensor):
            tensors.append(item)
            key += (item.shape, item.stride(), item.dtype, item._fake_device)
        elif kind is list or kind is tuple:
            key.append(len(item))
            _describe(item, key, tensors)
        else:
            raise UnknownShapeError


def is_rememberable(func: Any) -> bool:
    """Whether results depend on nothing but what ``signature`` tells. ``as_strided`` counts from where a storage
    begins, all other views from where their input does."""
    name = func.name()
    return (
        func.namespace in ("aten", "bitsandbytes", "prims")
        and not any(tag in func.tags for tag in NEVER)
        and not any(part in name for part in ("as_strided", "lift", "set_"))
    )


def remembered(result: Any, tensors: Sequence[FakeTensor]) -> KnownOutputs | None:
    """How to make ``result`` again from equal inputs; None if that cannot be told."""
    if result is None:
        return KnownOutputs(None, None)
    if isinstance(result, FakeTensor):
        output = _output(result, tensors)
        return None if output is None else KnownOutputs(None, (output,))
    if type(result) not in (tuple, list):
        return None
    outputs = tuple(_output(item, tensors) for item in result)
    return None if None in outputs else KnownOutputs(type(result), outputs)  # pyright: ignore[reportArgumentType]


def _output(tensor: Any, tensors: Sequence[FakeTensor]) -> Output | None:
    if type(tensor) is not FakeTensor or tensor.constant is not None or tensor.layout != torch.strided:
        return None
    if tensor.dtype.is_complex or tensor.requires_grad or any(t.dtype.is_complex for t in tensors):
        return None
    same = [place for place, item in enumerate(tensors) if item is tensor]
    if same:
        return Output(same_as=same[0]) if len(same) == 1 else None
    storage = tensor.untyped_storage()._cdata
    bases = [place for place, item in enumerate(tensors) if item.untyped_storage()._cdata == storage]
    if len(bases) > 1:
        return None
    return Output(
        view_of=bases[0] if bases else -1,
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        offset=int(tensor.storage_offset()) - (int(tensors[bases[0]].storage_offset()) if bases else 0),
        dtype=tensor.dtype,
        device=tensor._fake_device,
        state=dict(vars(tensor)),
        is_new=not bases,
    )


def made(output: Output, tensors: Sequence[FakeTensor]) -> FakeTensor:
    """The tensor, as ``FakeTensorMode._get_output_tensor_from_cache_entry`` and ``FakeTensor.__new__`` make it."""
    if output.same_as >= 0:
        return tensors[output.same_as]
    with torch._C._DisableTorchDispatch():
        element = torch.empty_strided(output.shape, output.stride, dtype=output.dtype, device="meta")
        if output.view_of >= 0:
            base = tensors[output.view_of]
            place = base.storage_offset() + output.offset
            element.set_(base.untyped_storage(), place, output.shape, output.stride)  # pyright: ignore[reportArgumentType]
    fake = torch.Tensor._make_subclass(
        FakeTensor, element, False, dispatch_device=True, device_for_backend_keys=output.device
    )
    torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)
    vars(fake).update(output.state)
    return fake
