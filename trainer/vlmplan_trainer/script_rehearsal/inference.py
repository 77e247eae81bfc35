"""``torch.inference_mode`` as ``torch.no_grad``: fake tensors made of a script's own data cannot be inference tensors
("Cannot set version_counter for inference tensor"). The two allocate the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlmplan_trainer.rehearse.replaced import replaced

BEFORE = "_vlmplan_grad_before"


@contextmanager
def inferring_without_gradients() -> Iterator[None]:
    """Within, inference mode turns gradients off, and ``inference_mode(False)`` on, as ``InferenceMode`` of
    ``c10/core/InferenceMode.h`` does besides."""

    def enter(self: Any) -> None:
        setattr(self, BEFORE, torch.is_grad_enabled())
        torch.set_grad_enabled(not self.mode)

    def leave(self: Any, *args: object) -> None:
        torch.set_grad_enabled(getattr(self, BEFORE))

    with replaced(torch.inference_mode, "__enter__", enter), replaced(torch.inference_mode, "__exit__", leave):
        yield
