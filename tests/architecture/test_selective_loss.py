"""ms-swift's preference loss beside a small model of transformers that is trained as its trainer does it, on fake
tensors: what ``DPOTrainer`` of 4.6.0 does with logits, operation by operation."""

from functools import partial

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
from vlmplan.units import DType

ANSWER = 70


def selective_log_softmax(logits, index):
    """TRL 0.29 ``trainer/utils.py``."""
    index = index.unsqueeze(-1)
    if logits.dtype is torch.float32:
        selected = torch.gather(logits, dim=-1, index=index)
        sums = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
        return (selected - sums.unsqueeze(-1)).squeeze(-1)
    found = []
    for row, labels in zip(logits, index, strict=True):
        logarithms = F.log_softmax(row, dim=-1)
        found.append(logarithms.gather(dim=-1, index=labels))
    return torch.stack(found).squeeze(-1)


class PreferenceTrainer(nn.Module):
    """``get_batch_loss_metrics``; ``is_wide``: accelerate makes the model's outputs float32."""

    def __init__(self, *, is_wide: bool, keep: int) -> None:
        super().__init__()
        self.model, self.is_wide, self.keep = real_model(CONFIG), is_wide, keep

    def forward(self, **batch):
        found, means = self.looked_up(batch)
        with torch.no_grad():
            before, _ = self.looked_up(batch)
        chosen, rejected = (found - before).split(PAIRS)
        del means
        return CausalLMOutput(loss=-F.logsigmoid(0.1 * (chosen - rejected)).mean())

    def looked_up(self, batch):
        """``concatenated_forward``."""
        labels = batch["labels"][:, -self.keep :]
        inputs = {name: one for name, one in batch.items() if name != "labels"}
        logits = self.called(inputs)
        labels = torch.roll(labels, shifts=-1, dims=1)
        mask = labels != -100
        labels = labels.clone()
        labels[~mask] = 0
        means = logits.mean(-1)
        found = selective_log_softmax(logits, labels)
        found[~mask] = 0
        means[~mask] = 0
        return found.sum(-1), means

    def called(self, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_wide):
            logits = self.model(**inputs, use_cache=False, logits_to_keep=self.keep).logits
        return logits.float() if self.is_wide else logits


def planned(*, is_wide: bool, scored: int, vocab_size: int = CONFIG["vocab_size"]):
    autocast = DType.BFLOAT16 if is_wide else None
    return preference_step(LossKind.SELECTIVE, autocast=autocast, vocab_size=vocab_size, scored_tokens=scored)


@pytest.mark.parametrize("scored", [TOKENS - 1, ANSWER])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_step_keeps_and_peaks_as_ms_swifts(is_wide: bool, scored: int):
    batch = Batch(micro_batch=2 * PAIRS, num_tokens=TOKENS)
    # a dispatch mode lets ``gather_backward`` add to new zeros, not to its own
    added = 4 * 2 * PAIRS * (scored + 1) * CONFIG["vocab_size"] if is_wide else 0
    trainer = partial(PreferenceTrainer, is_wide=is_wide, keep=scored + 1)
    assert_planned(planned(is_wide=is_wide, scored=scored), trainer, batch, tolerance=0.002, less_in_backward=added)
