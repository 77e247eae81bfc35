"""VLM-R1's log-probabilities beside a small model of transformers that is trained with them, on fake tensors."""

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from family_checks import real_model
from loss_steps import CONFIG, assert_planned
from tape_probe import predicted_step
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.recipe.choices import LossKind

BATCH = Batch(micro_batch=5, num_tokens=331)


def per_token_logps(model: nn.Module, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """What ``_get_per_token_logps`` of ``VLMGRPOTrainer`` does: logits of all rows, and each row's logarithms."""
    logits = model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
    logits = logits[:, :-1, :]
    found = []
    for row, ids in zip(logits, input_ids[:, 1:], strict=True):
        logarithms = row.log_softmax(dim=-1)
        found.append(torch.gather(logarithms, dim=1, index=ids.unsqueeze(1)).squeeze(1))
    return torch.stack(found)


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = real_model(CONFIG)

    def forward(self, input_ids, labels, attention_mask):
        del labels
        return CausalLMOutput(loss=per_token_logps(self.model, input_ids, attention_mask).sum())


def test_a_step_keeps_and_peaks_as_vlm_r1s_own():
    planned = predicted_step(build_model(CONFIG), BATCH, loss=LossKind.ROWS, makes_loss_inside=False, gets_mask=False)
    assert_planned(planned, Policy, BATCH, tolerance=0.005)
