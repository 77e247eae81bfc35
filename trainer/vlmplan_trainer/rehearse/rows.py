"""Rows as the trainer's data loader lays them out: several samples in one, or prompts apart from answers."""

import torch

from vlmplan_trainer.data.encode import SEQUENCE_KEYS
from vlmplan_trainer.data.flat_rows import flat_row
from vlmplan_trainer.labels import TARGET_LABELS

FIRST_ID, NUM_IDS = 5, 60
"""Ids that texts are made of."""


def laid_out(values: dict[str, torch.Tensor], sequences: tuple[int, ...] | None) -> dict[str, torch.Tensor]:
    """The tensors as the data loader leaves them: where they are one row, with positions in place of the mask."""
    if sequences is None:
        return values
    parts = {
        name: [part for row in tensor for part in row.split(sequences)]
        for name, tensor in values.items()
        if name in SEQUENCE_KEYS
    }
    count = len(parts["input_ids"])
    rows = [{name: tensors[index][None] for name, tensors in parts.items()} for index in range(count)]
    return {name: value for name, value in values.items() if name not in SEQUENCE_KEYS} | flat_row(rows, pad_id=0)


def pairs(num_samples: int, num_tokens: int, target_tokens: int) -> dict[str, torch.Tensor]:
    """Prompts of ``num_tokens``, of which one is a token shorter than the others, and answers of ``target_tokens``.

    Prompts of one length would need no mask, which those of real samples do.
    """
    prompts = _texts(num_samples, num_tokens)
    mask = torch.ones_like(prompts)
    mask[0, -1] = 0
    return {"input_ids": prompts, "attention_mask": mask, **answers(num_samples, target_tokens)}


def answers(num_samples: int, target_tokens: int) -> dict[str, torch.Tensor]:
    """Answers alone, of a model whose encoder reads no text."""
    return {TARGET_LABELS: _texts(num_samples, target_tokens)}


def _texts(num_samples: int, num_tokens: int) -> torch.Tensor:
    return (torch.arange(num_tokens) % NUM_IDS + FIRST_ID).repeat(num_samples, 1)
