"""torchao's updates as the kernels that torch compiles of them, which fake tensors cannot run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced

PACKING = ((torch.float32, False), (torch.float32, True), (torch.int64, True))
"""What the kernels make of each moment of four bits on its way, of every block or of every element
(``engines.optimizer_states``)."""


@contextmanager
def updating_in_compiled_kernels() -> Iterator[None]:
    """Of moments of 8 bits and more nothing comes besides, as all of an update is one kernel."""
    from torchao.optim import adam
    from torchao.optim.subclass_4bit import OptimState4bit

    def update(weight: Any, gradient: Any, step: Any, *moments: Any) -> None:
        packed = [moment for moment in moments[:2] if isinstance(moment, OptimState4bit)]
        held = [
            torch.empty(weight.numel() if is_whole else moment.scale.numel(), dtype=dtype, device=weight.device)
            for dtype, is_whole in PACKING
            for moment in packed
        ]
        del held

    def compiled(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
        return function

    with replaced(adam, "single_param_adam", update), replaced(torch, "compile", compiled):
        yield
