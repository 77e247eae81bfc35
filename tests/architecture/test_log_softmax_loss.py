"""LLaMA-Factory's preference loss beside a small model of transformers that is trained as its trainer does it, on fake
tensors: what ``CustomDPOTrainer`` of 0.9.5 does with logits, operation by operation."""

import pytest

pytest.importorskip("transformers")

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from family_checks import real_model
from loss_steps import CONFIG, PAIRS, TOKENS, assert_planned, preference_step
from vlmplan.architecture.model import Batch
from vlmplan.recipe.choices import LossKind


class PreferenceTrainer(nn.Module):
    """``get_batch_loss_metrics``: ``sigmoid`` with a reference, ``simpo`` without."""

    def __init__(self, *, has_reference: bool) -> None:
        super().__init__()
        self.model, self.has_reference = real_model(CONFIG), has_reference

    def forward(self, **batch):
        found, logits = self.looked_up(batch)
        if self.has_reference:
            with torch.no_grad():
                before, _ = self.looked_up(batch)
            found = found - before
        chosen, rejected = found.split(PAIRS)
        loss = -F.logsigmoid(0.1 * (chosen - rejected)).mean()
        for half in logits:
            half.mean().item()
        return CausalLMOutput(loss=loss)

    def looked_up(self, batch):
        """``concatenated_forward``: log-probabilities, and both halves of the logits."""
        copies = {name: one.detach().clone() if self.has_reference else one for name, one in batch.items()}
        labels = copies.pop("labels")
        logits = self.model(**copies, use_cache=False).logits.to(torch.float32)
        labels, scored = labels[:, 1:].clone(), logits[:, :-1, :]
        mask = labels != -100
        labels[labels == -100] = 0
        found = torch.gather(scored.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (found * mask).sum(-1), logits.split(PAIRS)


def planned(*, has_reference: bool, vocab_size: int = CONFIG["vocab_size"]):
    return preference_step(
        LossKind.LOG_SOFTMAX, has_reference=has_reference, vocab_size=vocab_size, is_cloned=has_reference
    )


@pytest.mark.parametrize("has_reference", [True, False])
def test_a_step_keeps_and_peaks_as_llama_factorys(has_reference: bool):
    batch = Batch(micro_batch=2 * PAIRS, num_tokens=TOKENS)
    found = planned(has_reference=has_reference)
    assert_planned(found, lambda: PreferenceTrainer(has_reference=has_reference), batch, tolerance=0.002)


def test_the_highest_moment_is_the_references():
    """For each word, in float32: the model's logits and the part of them that backward needs; the reference's logits,
    the part of them that is scored, in one piece, and its result. Backward, and both without a reference, take less."""
    whole, scored = 4 * 2 * PAIRS * TOKENS, 4 * 2 * PAIRS * (TOKENS - 1)
    expected = {True: (2 * whole + 3 * scored, 3 * scored), False: (whole + 2 * scored, 3 * scored)}
    for has_reference, peaks in expected.items():
        small, large = (planned(has_reference=has_reference, vocab_size=size) for size in (5003, 7013))
        grown = (large.forward_peak - small.forward_peak, large.backward_peak - small.backward_peak)
        assert grown == tuple((7013 - 5003) * one for one in peaks)
