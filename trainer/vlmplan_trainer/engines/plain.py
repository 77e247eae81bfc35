"""One GPU, or one CPU process, without DeepSpeed: torch's autocast, optimizer and gradient scaler."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision
from vlmplan_trainer.engines.base import LossModule, StepResult
from vlmplan_trainer.engines.optimizers import keeping_settings, make_optimizer, set_learning_rate, trained_of

STATE_FILE = "state.pt"


class PlainEngine:
    rank, num_ranks = 0, 1

    @property
    def loss_scale(self) -> int:
        return 1

    def __init__(self, module: LossModule, recipe: Recipe, *, device: torch.device, weight_decay: float) -> None:
        self._module, self._recipe, self.device = module, recipe, device
        trained = trained_of(module)
        self._trained = list(trained.values())
        self._optimizer = make_optimizer(trained, recipe, weight_decay=weight_decay)
        self._scaler = torch.amp.GradScaler(device.type) if recipe.precision is Precision.FP16 else None

    @property
    def model(self) -> nn.Module:
        return self._module.model

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self._recipe.autocast
        if dtype is None:
            return nullcontext()
        kind = getattr(torch, dtype.torch_name)
        return torch.autocast(self.device.type, kind, cache_enabled=self._recipe.caches_casts)

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        with self._autocast():
            return self._module(batch, num_items)

    def backward(self, loss: Tensor) -> None:
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        self._module.release_logits()

    def step(self, learning_rate: float) -> StepResult:
        set_learning_rate(self._optimizer, learning_rate)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = None
        if self._recipe.gradient_clipping:
            norm = self._clipped_norm()
        is_skipped = False
        if self._scaler is None:
            self._optimizer.step()
        else:
            before = self._scaler.get_scale()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            is_skipped = self._scaler.get_scale() < before
        self._forget_gradients()
        return StepResult(grad_norm=norm, is_skipped=is_skipped)

    def _clipped_norm(self) -> float:
        return float(nn.utils.clip_grad_norm_(self._trained, self._recipe.gradient_clipping))

    def _forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def totals(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def barrier(self) -> None:
        pass

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        trained = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        scaler = None if self._scaler is None else self._scaler.state_dict()
        content = {"weights": trained, "optimizer": self._optimizer.state_dict(), "scaler": scaler}
        torch.save(content, folder / STATE_FILE)

    def load(self, folder: Path) -> None:
        # Mapped, so that ranks share it and a GPU gets tensor by tensor: its states are there once, and no weights
        # beside the model's. On a CPU states stay what they were read as, which is to outlive the file.
        is_mapped = self.device.type != "cpu"
        content = torch.load(folder / STATE_FILE, map_location="cpu", mmap=is_mapped, weights_only=True)
        named = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in content["weights"].items():
                named[name].copy_(tensor)
        with keeping_settings(self._optimizer):
            self._optimizer.load_state_dict(content["optimizer"])
        if self._scaler is not None:
            self._scaler.load_state_dict(content["scaler"])

    def weights(self) -> dict[str, Tensor] | None:
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}
