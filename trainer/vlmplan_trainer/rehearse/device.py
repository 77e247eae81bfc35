"""A GPU that is not there: torch's device ``gpu``, on which fake tensors live as they would on a CUDA card.

torch gives out one device type to backends of others (PrivateUse1). Taken in Python, without kernels, it makes
autograd's engine, foreach and fused optimizers and autocast treat the tensors as an accelerator's. A build of torch for
CPUs cannot do that with ``cuda``: its engine aborts for want of a device guard.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from vlmplan_trainer.rehearse.ledger import CACHE_EMPTIED, Ledger
from vlmplan_trainer.rehearse.streams import DEFAULT_STREAM, Event, Stream, current

NAME = "gpu"


class DeviceModule:
    """``torch.gpu``: what torch asks the module of a device."""

    Stream, Event = Stream, Event

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        pass

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        yield

    def stream(self, stream: Any) -> Any:
        return stream or current()

    def current_stream(self, device: Any = None) -> Any:
        return current()

    def default_stream(self, device: Any = None) -> Any:
        return DEFAULT_STREAM

    def synchronize(self, device: Any = None) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    manual_seed = manual_seed_all

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device="meta")

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def memory_allocated(self, device: Any = None) -> int:
        return self.ledger.device.live_bytes

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.ledger.device.peak_bytes

    def empty_cache(self) -> None:
        self.ledger.device.events.append(CACHE_EMPTIED)


def register(ledger: Ledger) -> DeviceModule:
    """Make the device known to torch, once in a process."""
    module = DeviceModule(ledger)
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    return module
