"""verl's losses beside a small model of transformers that is trained as verl's actor trains it, on fake tensors."""

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from family_checks import real_model
from loss_steps import CONFIG, assert_planned
from tape_probe import predicted_step
from vlmplan.architecture.model import Batch
from vlmplan.recipe.choices import LossKind

BATCH = Batch(micro_batch=1, num_tokens=1100)
TEMPERATURE = 0.7


class CrossEntropyInPlace(torch.autograd.Function):
    """flash-attn's: what its Triton kernels read and write, without them."""

    @staticmethod
    def forward(ctx, logits, labels):
        losses, sums, _squares = (torch.empty(len(labels), dtype=torch.float32) for _ in range(3))
        ctx.save_for_backward(logits, sums, labels)
        return losses

    @staticmethod
    def backward(ctx, grad_losses):
        logits, _, _ = ctx.saved_tensors
        return logits, None


class LinearInChunks(torch.autograd.Function):
    """verl's ``FusedLinearForPPO``, operation by operation."""

    @staticmethod
    def forward(ctx, hidden, weight, labels):
        hidden, labels = hidden.flatten(0, 1), labels.flatten()
        found, entropies = (hidden.new_zeros(len(hidden)) for _ in range(2))
        for start in range(0, len(hidden), 512):
            found[start : start + 512], entropies[start : start + 512] = looked_up(
                hidden[start : start + 512], weight, labels[start : start + 512]
            )
        ctx.save_for_backward(hidden, weight, labels)
        return found, entropies

    @staticmethod
    def backward(ctx, grad, _):
        hidden, weight, labels = ctx.saved_tensors
        grad_hidden, grad_weight = torch.zeros_like(hidden), torch.zeros_like(weight)
        for start in range(0, len(hidden), 512):
            rows, part = gradients(
                hidden[start : start + 512], weight, labels[start : start + 512], grad[start : start + 512]
            )
            grad_hidden[start : start + 512] += rows
            grad_weight += part
        return grad_hidden.view(1, *grad_hidden.shape), grad_weight, None


def looked_up(hidden, weight, labels):
    logits = (hidden @ weight.t()) / TEMPERATURE
    logits = logits.to(torch.float32)
    probabilities = logits.softmax(dim=-1)
    logarithms = logits.log_softmax(dim=-1)
    found = logarithms.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    entropy = torch.logsumexp(logits, dim=-1) - torch.sum(probabilities * logits, dim=-1)
    return found.to(hidden.dtype), entropy.to(hidden.dtype)


def gradients(hidden, weight, labels, grad):
    logits = (hidden @ weight.t()) / TEMPERATURE
    logits = logits.to(torch.float32)
    probabilities = logits.softmax(dim=-1)
    of_logits = 0
    chosen = torch.zeros_like(logits).scatter_(-1, labels.unsqueeze(-1), 1)
    of_logits += grad.to(torch.float32).unsqueeze(-1) * (chosen - probabilities)
    of_logits = of_logits.to(hidden.dtype) / TEMPERATURE
    rows = of_logits @ weight
    part = of_logits.t() @ hidden
    return rows, part


class Actor(nn.Module):
    def __init__(self, *, is_fused: bool = False, is_quotient: bool = False) -> None:
        super().__init__()
        self.model, self.is_fused, self.is_quotient = real_model(CONFIG), is_fused, is_quotient

    def forward(self, input_ids, labels, attention_mask):
        ids = input_ids
        if self.is_fused:
            hidden = self.model.model(input_ids=ids, use_cache=False)[0]
            found, _ = LinearInChunks.apply(hidden, self.model.lm_head.weight, labels)
            return CausalLMOutput(loss=found.sum())
        return CausalLMOutput(loss=self.log_probabilities(ids, labels).sum())

    def log_probabilities(self, ids, labels):
        output = self.model(input_ids=ids, use_cache=False)
        logits = output.logits.squeeze(0)
        if self.is_quotient:
            temperatures = torch.full((len(logits),), TEMPERATURE)
            logits = logits / temperatures.clamp(min=1e-8).unsqueeze(-1).to(logits.dtype)
        else:
            logits.div_(TEMPERATURE)
        return -CrossEntropyInPlace.apply(logits, labels.squeeze(0))


@pytest.mark.parametrize("loss", [LossKind.VERL, LossKind.VERL_QUOTIENT, LossKind.VERL_FUSED])
def test_a_step_keeps_and_peaks_as_verls_own(loss):
    kinds = {"is_fused": loss is LossKind.VERL_FUSED, "is_quotient": loss is LossKind.VERL_QUOTIENT}
    planned = predicted_step(CONFIG, BATCH, loss=loss, makes_loss_inside=False, gets_mask=False)
    assert_planned(planned, lambda: Actor(**kinds), BATCH, tolerance=0.005)
