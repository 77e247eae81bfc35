"""Sums of gradients that autograd makes in place, seen from a dispatch mode.

``InputBuffer::accumulate`` (``torch/csrc/autograd/input_buffer.cpp``, torch 2.13) adds the second gradient of a tensor
to the first one where it alone holds that, but never while a dispatch mode looks on: then there is one tensor more than
without it, as large as an embedding where its weight is the head's too.
"""

import sys
from typing import Any

import torch

ENGINE = "_engine_run_backward"
"""torch's function that calls the engine: what the engine itself computes comes from there."""
TENSOR_HOLDERS, STORAGE_HOLDERS, OBJECT_HOLDERS = 4, 2, 5
"""While an operation on the engine's only copy is looked at: of the tensor the buffer, its argument and two of
Python's; of the storage the tensor and Python's object for it, or the meta tensor inside a fake one; of Python's
object the tensor, the operation's arguments, variables of ``is_in_place`` and ``_is_owned``, and the question itself.
"""


def is_in_place(args: Any, kwargs: Any, *, depth: int) -> bool:
    """Whether ``aten.add`` of ``args`` is such a sum. ``depth`` is the caller's: 1 where it is the dispatch itself."""
    first, second = args[0], args[1]
    if not isinstance(second, torch.Tensor) or kwargs or torch._C._current_graph_task_id() < 0:
        return False
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return sys._getframe(depth + 1).f_code.co_name == ENGINE and _is_owned(first)


def _is_owned(tensor: Any) -> bool:
    """Whether only the engine's buffer holds a tensor and its storage, as ``can_accumulate_inplace`` asks."""
    holders = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    if tensor._use_count() > TENSOR_HOLDERS or holders > STORAGE_HOLDERS:
        return False
    return sys.getrefcount(tensor) <= OBJECT_HOLDERS
