"""ms-swift's loss of GRPO beside a small model of transformers that is trained as its trainer does it, on fake
tensors: what ``GRPOTrainer`` of 4.6.0 does with logits, operation by operation."""

import pytest

pytest.importorskip("transformers")

import torch
import torch.nn.functional as F
from test_selective_loss import CONFIG, selective_log_softmax
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from family_checks import real_model, text_inputs
from tape_probe import step_of
from torch_probe import measured_step
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.tape import Tape
from vlmplan.hardware import CPU_KERNELS
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

ROWS, TOKENS, ANSWER = 5, 110, 70


def entropy_from_logits(logits, chunk_size=128):
    """TRL 0.29 ``trainer/utils.py``."""
    found = []
    for chunk in logits.reshape(-1, logits.shape[-1]).split(chunk_size, dim=0):
        logarithms = F.log_softmax(chunk, dim=-1)
        found.append(-(torch.exp(logarithms) * logarithms).sum(-1))
    return torch.cat(found).reshape(logits.shape[:-1])


class AnswerTrainer(nn.Module):
    """``_compute_loss_and_metrics``; ``is_wide``: accelerate makes the model's outputs float32."""

    def __init__(self, *, is_wide: bool, with_entropy: bool) -> None:
        super().__init__()
        self.model, self.is_wide, self.with_entropy = real_model(CONFIG), is_wide, with_entropy

    def forward(self, **batch):
        found, entropies = self.looked_up(batch)
        ratio = torch.exp(found - found.detach())
        loss = -torch.min(ratio, torch.clamp(ratio, 0.8, 1.2)).mean()
        del entropies
        return CausalLMOutput(loss=loss)

    def looked_up(self, batch):
        """``_get_logps_via_local_forward``."""
        ids = batch["input_ids"][:, -ANSWER:]
        logits = self.called({name: one for name, one in batch.items() if name != "labels"})
        logits = logits[:, -(ANSWER + 1) : -1, :]
        logits.div_(0.9)
        found = selective_log_softmax(logits, ids)
        return found, entropy_from_logits(logits) if self.with_entropy else None

    def called(self, inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_wide):
            logits = self.model(**inputs, use_cache=False, logits_to_keep=ANSWER + 1).logits
        return logits.float() if self.is_wide else logits


@pytest.mark.parametrize("loss", [LossKind.TEMPERED, LossKind.TEMPERED_ENTROPY])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_step_keeps_and_peaks_as_ms_swifts(is_wide: bool, loss: LossKind):
    batch = Batch(micro_batch=ROWS, num_tokens=TOKENS, scored_tokens=ANSWER)
    with_entropy = loss is LossKind.TEMPERED_ENTROPY
    measured = measured_step(lambda: AnswerTrainer(is_wide=is_wide, with_entropy=with_entropy), text_inputs(batch))
    backend = AttentionBackend(compute_capability=CPU_KERNELS, gets_mask=True)
    autocast = DType.BFLOAT16 if is_wide else None
    tape = Tape(accumulates_in_place=False, fuses_dropout=False, follows_weights=False, autocast=autocast)
    found = step_of(build_model(CONFIG).run(tape, batch, backend, loss=loss))
    for name in ("forward_live", "forward_peak", "backward_peak"):
        assert getattr(found, name) == pytest.approx(getattr(measured, name), rel=0.002), name
