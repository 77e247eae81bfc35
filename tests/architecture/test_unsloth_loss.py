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
from vlmplan.architecture.losses.unsloth import chunk_shape
from vlmplan.architecture.model import Batch
from vlmplan.recipe.choices import LossKind

PARTS_OF_VOCABULARY = 16384
STATISTICS = {False: 7, True: 8}
"""Of a part of the vocabulary, by whether the chunk is a narrow one."""


class FusedLogProbabilities(torch.autograd.Function):
    """``_logprobs_impl`` of unsloth_zoo 2026.10.9 with a frozen head, as it runs with Triton: the gradient of hidden
    states before it is scaled, one buffer of float32 logits for every chunk, into which Triton writes their gradient,
    and a product in float32; narrow chunks (``_tiled_forward``) add products up in one buffer."""

    @staticmethod
    def forward(ctx, hidden, weight):
        (num_rows, width), (vocab_size, _) = hidden.shape, weight.shape
        rows, columns = chunk_shape(num_rows, width, vocab_size)
        is_narrow = columns < vocab_size
        places = torch.empty(num_rows, dtype=torch.int64)
        logps, lse = (torch.zeros(num_rows, dtype=torch.float32) for _ in range(2))
        gradient = torch.zeros_like(hidden)
        logits = torch.empty((rows, columns), dtype=torch.float32)
        sums = torch.empty((rows, width), dtype=torch.float32) if is_narrow else None
        for start in range(0, num_rows, rows):
            end = min(start + rows, num_rows)
            parts = -(-vocab_size // PARTS_OF_VOCABULARY)
            part = torch.empty((STATISTICS[is_narrow], parts, end - start), dtype=torch.float32)
            del part
            product = sums if is_narrow else torch.empty((end - start, width), dtype=torch.float32)
            gradient[start:end].copy_(product[: end - start])
            del product
        ctx.save_for_backward(gradient)
        del places, lse, logits, sums
        return logps

    @staticmethod
    def backward(ctx, grad):
        (gradient,) = ctx.saved_tensors
        return torch.empty_like(gradient), None


class Policy(nn.Module):
    """After its packed rows the model looks up one by itself, without a gradient: a chunk of its logits."""

    def __init__(self, vocab_size: int, scored: int) -> None:
        super().__init__()
        self.model = real_model({**CONFIG, "vocab_size": vocab_size})
        self.model.lm_head.weight.requires_grad_(False)
        self.scored = scored

    def forward(self, input_ids, labels, attention_mask):
        hidden = self.model.model(input_ids=input_ids, use_cache=False)[0]
        is_scored = torch.zeros(hidden.shape[0], hidden.shape[1] - 1, dtype=torch.bool)
        is_scored[:, -self.scored :] = True
        rows = hidden[:, :-1][is_scored]
        weight = self.model.lm_head.weight
        found = FusedLogProbabilities.apply(rows, weight)
        alone = torch.empty(chunk_shape(hidden.shape[1] - 1, hidden.shape[2], len(weight)), dtype=torch.float32)
        del alone
        return CausalLMOutput(loss=found.sum())


@pytest.mark.parametrize(
    ("vocab_size", "tokens", "scored"),
    [(5003, 700, 517), (40_003, 1500, 1400), (160_003, 700, 517)],
    ids=["one chunk", "narrow chunks", "chunks of all words"],
)
def test_a_step_keeps_and_peaks_as_unsloths_own(vocab_size: int, tokens: int, scored: int):
    planned_model = build_model({**CONFIG, "vocab_size": vocab_size})
    planned_model.head.weight.requires_grad = False
    batch = Batch(micro_batch=3, num_tokens=tokens, scored_tokens=scored)
    planned = predicted_step(planned_model, batch, loss=LossKind.UNSLOTH, makes_loss_inside=False, gets_mask=False)
    assert_planned(planned, lambda: Policy(vocab_size, scored), batch, tolerance=0.005)


@pytest.mark.parametrize(
    ("num_rows", "width", "vocab_size", "rows"),
    [(2048, 4096, 128_256, 512), (8192, 4096, 32_000, 2048), (300, 896, 151_936, 300), (1551, 64, 1000, 1551)],
)
def test_a_chunk_has_as_many_rows_as_unsloth_gives_it(num_rows: int, width: int, vocab_size: int, rows: int):
    """Rows that ``fused_linear_rows`` of unsloth_zoo 2026.10.9 returned for these sizes."""
    assert chunk_shape(num_rows, width, vocab_size)[0] == rows
