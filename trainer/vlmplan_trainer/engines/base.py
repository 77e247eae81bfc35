"""The engine as the loop sees it, and the module that it runs: a micro batch in, its loss out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from vlmplan.errors import InputError
from vlmplan.recipe.choices import LossKind
from vlmplan_trainer.data.flat_rows import for_the_model
from vlmplan_trainer.losses.loss import language_loss, model_loss

"""What a checkpoint keeps beside weights and optimizer: position, learning rate schedule, random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """``grad_norm`` before clipping, where the engine knows it; ``is_skipped``: fp16 gradients overflowed."""

    grad_norm: float | None
    is_skipped: bool


class LossModule(nn.Module):
    """The model with its loss inside, so that an engine's forward hooks see all of it.

    With the full loss the logits live until ``release_logits``, which engines call after backward. That is how plain
    Hugging Face code computes it, ``outputs = model(**batch); outputs.loss.backward()``. With the model's own loss they
    are freed when its forward returns, as in Hugging Face's Trainer.
    """

    def __init__(self, model: nn.Module, *, loss: LossKind) -> None:
        """Raises InputError for a loss that only another trainer has."""
        super().__init__()
        if loss is LossKind.TRL:
            raise InputError("--loss trl is planned for TRL's trainer, which alone has that head; give chunked or full")
        self.model, self.loss = model, loss
        self._logits: Tensor | None = None

    def forward(self, batch: Mapping[str, Tensor], num_items: Tensor | int | None = None) -> Tensor:
        """The sum of the label tokens' losses over ``num_items``."""
        inputs = for_the_model(self.model, batch)
        if self.loss is LossKind.MODEL:
            return model_loss(self.model, inputs, num_items=num_items)
        hold = self._hold if torch.is_grad_enabled() else None
        return language_loss(self.model, inputs, kind=self.loss, num_items=num_items, hold=hold)

    def _hold(self, logits: Tensor) -> None:
        self._logits = logits

    def release_logits(self) -> None:
        """Called when backward is done."""
        self._logits = None


class Engine(Protocol):
    """One rank. ``forward`` gives the loss of a micro batch as a share of the whole step's."""

    device: torch.device
    rank: int
    num_ranks: int

    @property
    def model(self) -> nn.Module:
        """transformers' model, with adapters where there are any."""
        ...

    @property
    def loss_scale(self) -> int:
        """What ``forward`` multiplies the loss by, because the engine will divide by it."""
        ...

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor: ...

    def backward(self, loss: Tensor) -> None: ...

    def step(self, learning_rate: float) -> StepResult:
        """Clip, update and forget the gradients."""
        ...

    def totals(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all ranks."""
        ...

    def barrier(self) -> None: ...

    def save(self, folder: Path) -> None:
        """Write weights and optimizer into ``folder``; every rank calls it."""
        ...

    def load(self, folder: Path) -> None:
        """Read them back; every rank calls it."""
        ...

    def weights(self) -> dict[str, Tensor] | None:
        """All weights whole under transformers' names, on rank 0 (None elsewhere)."""
        ...
