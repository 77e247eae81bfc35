"""Inputs of checkpointed layers in host memory until backward runs the layer again.

``torch.utils.checkpoint`` saves the inputs under the hooks that are there when it is called, and packs what the layer
saves by hooks of its own: so only the inputs come here. Copies run on the stream that computes, to and from pinned
memory: a tensor's memory is free for what comes after its copy, and nothing else is in flight.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

OnHost = tuple[torch.device, Tensor]


def offloading_checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``checkpoint(function, ...)`` that is not reentrant, whose inputs wait on the host."""
    with saved_tensors_hooks(_packed, _unpacked):
        return checkpoint(function, *args, use_reentrant=False, **kwargs)


def _packed(x: Tensor) -> OnHost | Tensor:
    """Tensors without elements stay: torch saves one to find the inputs by."""
    if x.device.type == "cpu" or not x.numel():
        return x
    on_host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda")
    return x.device, on_host.copy_(x, non_blocking=True)


def _unpacked(packed: OnHost | Tensor) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    device, on_host = packed
    return on_host.to(device, non_blocking=True)
