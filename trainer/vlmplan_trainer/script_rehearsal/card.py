"""``cuda`` without a card: torch's own device type, so that a script finds what it asks for.

torch aborts at the first tensor of a device type that has no device guard, and its autograd engine asks which
accelerator there is. Both are C++ objects behind pointers that torch exports; here each gets one that does nothing:

- the guard: ``torch._C._ensureCUDADeviceGuardSet`` puts torch's own ``NoOpDeviceGuardImpl`` in place of a guard that
  counts no devices (``c10/core/impl/DeviceGuardImplInterface.h``, torch 2.13). A build for CPUs has no guard at all, so
  it first gets one that counts none.
- the accelerator: ``at::getAccelerator`` asks ``CUDAHooksInterface::isBuilt``, and the engine ``hasPrimaryContext``
  (``ATen/detail/AcceleratorHooksInterface.h``), by the table of virtual functions that the object points to. It gets a
  copy of that table with these two answered.

Only for a process that has no card and computes nothing: it ends with the rehearsal.
"""

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

from vlmplan.errors import UnavailableError

CUDA = 1
"""``c10::DeviceType::CUDA``."""
NUM_DEVICE_TYPES = 21
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
HOOKS = "_ZN2at6detail12getCUDAHooksEv"
TABLE_ENTRIES = 60
"""More than ``CUDAHooksInterface`` has virtual functions; what lies behind them is copied and not called."""
HEAD_ENTRIES = 2
"""Of a table of virtual functions before the first of them: an offset and the type (Itanium C++ ABI, 2.5.2)."""
CONTEXT_AFTER_BUILT = 2
"""``isBuilt``, ``isAvailable``, ``hasPrimaryContext`` are declared in this order."""
_kept: list[Any] = []
"""What C++ points to."""


def make_cuda_known() -> None:
    """Let fake tensors be on ``cuda``, backward included. Raises UnavailableError where this torch cannot."""
    try:
        _set_guard(_library("c10"))
        _set_hooks(_library("torch_cpu"))
    except (AttributeError, OSError, ValueError) as error:
        raise UnavailableError(
            f"torch {torch.__version__} does not let a card be simulated: {error}; give --gpu cpu:N"
        ) from None


def _library(name: str) -> ctypes.CDLL:
    suffix = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}{suffix}"))


def _set_guard(c10: ctypes.CDLL) -> None:
    registry = (ctypes.c_void_p * NUM_DEVICE_TYPES).in_dll(c10, REGISTRY)
    if registry[CUDA] is None:
        counts_none = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)(lambda guard: 0)
        address = ctypes.cast(counts_none, ctypes.c_void_p).value
        table = (ctypes.c_void_p * TABLE_ENTRIES)(*[address] * TABLE_ENTRIES)
        guard = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        _kept.extend((counts_none, table, guard))
        registry[CUDA] = ctypes.addressof(guard)
    torch._C._ensureCUDADeviceGuardSet()


def _set_hooks(torch_cpu: ctypes.CDLL) -> None:
    hooks = torch_cpu[HOOKS]
    hooks.restype, hooks.argtypes = ctypes.c_void_p, []
    pointer = ctypes.cast(hooks(), ctypes.POINTER(ctypes.c_void_p))
    table = (ctypes.c_void_p * (HEAD_ENTRIES + TABLE_ENTRIES))()
    word = ctypes.sizeof(ctypes.c_void_p)
    ctypes.memmove(table, pointer[0] - HEAD_ENTRIES * word, ctypes.sizeof(table))
    is_built = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda hooks: True)
    has_context = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)(lambda hooks, device: False)
    _kept.extend((table, is_built, has_context))
    pointer[0] = ctypes.addressof(table) + HEAD_ENTRIES * word
    if _accelerator() != "cuda":
        table[_place_of_built(table, is_built) + CONTEXT_AFTER_BUILT] = _address(has_context)


def _place_of_built(table: Any, is_built: Any) -> int:
    """The place of ``isBuilt``: the one entry whose answer makes CUDA the accelerator."""
    for place in range(HEAD_ENTRIES, HEAD_ENTRIES + TABLE_ENTRIES - CONTEXT_AFTER_BUILT):
        old, table[place] = table[place], _address(is_built)
        if _accelerator() == "cuda":
            return place
        table[place] = old
    raise ValueError("its hooks for CUDA are not those of torch 2.13")


def _accelerator() -> str:
    found = torch.accelerator.current_accelerator()
    return "" if found is None else found.type


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
