"""Unsloth's log-probabilities beside a small model of transformers that is trained with them, on fake tensors."""

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

SCORED = 517
BATCH = Batch(micro_batch=3, num_tokens=700, scored_tokens=SCORED)
CHUNKS = 3 * 4


class LogProbabilitiesInChunks(torch.autograd.Function):
    """``chunked_hidden_states_selective_log_softmax`` as inductor of torch 2.13 compiles it: of each chunk the product
    is saved, its float32 is in no buffer, and backward scatters into one for the last chunk and one for the others, and
    writes each gradient over its logits."""

    @staticmethod
    def forward(ctx, hidden, weight, index):
        saved = [rows @ weight.t() for rows in hidden.chunk(CHUNKS)]
        found = torch.empty(len(hidden), dtype=torch.float32)
        sums = torch.empty(len(hidden), dtype=torch.float32)
        ctx.save_for_backward(*saved, sums, weight)
        ctx.shape = hidden.shape
        return found

    @staticmethod
    def backward(ctx, grad):
        *logits, _, weight = ctx.saved_tensors
        ctx.maybe_clear_saved_tensors()
        found = None
        for place in reversed(range(len(logits))):
            part = logits.pop()
            scattered = torch.zeros(part.shape, dtype=torch.float32)
            del scattered
            if found is None:
                found = torch.empty(ctx.shape, dtype=part.dtype)
            size = -(-ctx.shape[0] // CHUNKS)
            torch.mm(part, weight, out=found[place * size : place * size + len(part)])
        return found, None, None


class Policy(nn.Module):
    """``verifies``: each row is looked up by itself, all of its logits at once."""

    def __init__(self) -> None:
        super().__init__()
        self.model = real_model(CONFIG)
        self.model.lm_head.weight.requires_grad_(False)

    def forward(self, input_ids, labels, attention_mask):
        hidden = self.model.model(input_ids=input_ids, use_cache=False)[0]
        is_scored = torch.zeros(hidden.shape[0], hidden.shape[1] - 1, dtype=torch.bool)
        is_scored[:, -SCORED:] = True
        rows = hidden[:, :-1][is_scored]
        found = LogProbabilitiesInChunks.apply(rows, self.model.lm_head.weight, labels[:, :-1][is_scored])
        alone = hidden[0, :-1].detach() @ self.model.lm_head.weight.t()
        del alone
        return CausalLMOutput(loss=found.sum())


def test_a_step_keeps_and_peaks_as_unsloths_own():
    planned_model = build_model(CONFIG)
    planned_model.head.weight.requires_grad = False
    planned = predicted_step(planned_model, BATCH, loss=LossKind.UNSLOTH, makes_loss_inside=False, gets_mask=False)
    assert_planned(planned, Policy, BATCH, tolerance=0.005)
