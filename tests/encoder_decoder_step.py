"""A step of transformers' model with an encoder and a decoder as the bundled trainer runs it, on fake tensors."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from family_checks import real_model, switch_checkpointing
from torch_probe import Measured, measured_step
from vlmplan.architecture.model import Batch
from vlmplan.recipe.choices import LossKind
from vlmplan_trainer.labels import TARGET_LABELS
from vlmplan_trainer.losses.loss import language_loss, model_loss

IMAGE = 3
"""The id of an image's placeholder, which stands before the prompt."""


class WithLoss(torch.nn.Module):
    """The model with the trainer's loss, which holds all logits until backward is over, or with its class's own."""

    def __init__(self, model: Any, kind: LossKind) -> None:
        super().__init__()
        self.model, self.kind = model, kind

    def forward(self, **batch: torch.Tensor) -> Any:
        held: list[torch.Tensor] = []
        if self.kind is LossKind.MODEL:
            return SimpleNamespace(loss=model_loss(self.model, batch), logits=held)
        loss = language_loss(self.model, batch, kind=LossKind.FULL, hold=held.append)
        return SimpleNamespace(loss=loss, logits=held)


def inputs_of(batch: Batch) -> dict[str, torch.Tensor]:
    """Prompts, of which one is a token shorter than the others, and answers; answers alone where sounds are heard."""
    if batch.audio is not None:
        row = torch.arange(batch.micro_batch * batch.target_tokens) % 100 + 5
        return {TARGET_LABELS: row.reshape(batch.micro_batch, batch.target_tokens)}
    ids, answers = (
        torch.arange(batch.micro_batch * length).reshape(batch.micro_batch, length) % 100 + 5
        for length in (batch.num_tokens, batch.target_tokens)
    )
    if batch.image is not None:
        ids[:, : batch.image.num_placeholder_tokens] = IMAGE
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    return {"input_ids": ids, "attention_mask": mask, TARGET_LABELS: answers}


def measured(
    config: Mapping[str, Any],
    batch: Batch,
    *,
    checkpoints: bool,
    attention: str,
    frozen: Sequence[str],
    spectrograms: tuple[int, ...] | None = None,
    pixels: tuple[int, ...] | None = None,
    loss: LossKind = LossKind.FULL,
) -> Measured:
    """What forward and backward keep and peak at; parameters whose names begin with one of ``frozen`` have no
    gradient."""

    def build() -> Any:
        model = real_model(config, attention=attention)
        for name, parameter in model.named_parameters():
            if frozen and name.startswith(tuple(frozen)):
                parameter.requires_grad_(False)
        return WithLoss(switch_checkpointing(model, on=checkpoints), loss)

    given = {"input_features": spectrograms, "pixel_values": pixels}
    floats = {name: shape for name, shape in given.items() if shape is not None}
    return measured_step(build, inputs_of(batch), floats=floats)
