"""Fake tensors as a rehearsal has them, for checks of its parts. Once in a process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import imported  # noqa: F401
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vlmplan_trainer.rehearse import autocast, collectives, device, kernels, shims
from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.ledger import Ledger

AMPERE = (8, 0)


@contextmanager
def rehearsing(
    *, without: str = "", capability: tuple[int, int] = AMPERE, has_device: bool = True
) -> Iterator[Rehearsal]:
    """All shims but the one named ``without``, and a GPU of this compute capability."""
    torch.set_num_threads(1)
    torch.autograd.set_multithreading_enabled(False)
    ledger = Ledger(counts_host_as_device=not has_device, is_in_phase=True)
    if has_device:
        device.register(ledger)
        autocast.register()
        kernels.register(capability)
    for name in ("SHIMS", "DEVICE_SHIMS"):
        setattr(shims, name, tuple(shim for shim in getattr(shims, name) if shim.__name__ != without))
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with shims.installed(has_device=has_device), fake_mode, Rehearsal(fake_mode, ledger, lambda: "") as mode:
        yield mode


def join(rank: int, num_ranks: int, *, has_device: bool = True) -> None:
    """A process group of which this process is one rank."""
    ranks = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": num_ranks}
    os.environ.update({name: str(value) for name, value in ranks.items()} | {"MASTER_ADDR": "127.0.0.1"})
    os.environ["MASTER_PORT"] = "1"
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    collectives.start(rank, num_ranks, has_device=has_device)
    deepspeed.init_distributed(collectives.BACKEND, verbose=False)


def gpu(*shape: int, **options: Any) -> torch.Tensor:
    return torch.empty(*shape, device=device.NAME, **options)
