"""Sums of gradients that are not made in place, as one of the two is another tensor's too."""

from collections import Counter

import pytest

pytest.importorskip("transformers")

import torch
from torch.profiler import ProfilerActivity, profile

from family_checks import real_model
from vlmplan.architecture import ops
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.model import Batch
from vlmplan.architecture.storage_log import LoggingTape
from vlmplan.architecture.trace import Allocation
from vlmplan.recipe.choices import LossKind

BATCH = Batch(micro_batch=2, num_tokens=8)
WIDTH, NUM_LAYERS = 96, 2
NEOX = {"model_type": "gpt_neox", "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": NUM_LAYERS} | {
    "num_attention_heads": 6,
    "vocab_size": 100,
}


class AllLayersTape(LoggingTape):
    runs_all_layers = True


def made_in_backward() -> Counter[int]:
    tape = AllLayersTape(follows_weights=False)
    trace = build_model(NEOX).run(tape, BATCH, AttentionBackend(), loss=LossKind.FULL)
    events = [event for section in trace.sections.values() for event in section.backward]
    return Counter(event.num_bytes for event in events if isinstance(event, Allocation))


def summed_by_torch() -> int:
    """Additions that the engine makes of gradients of hidden states."""
    logits = real_model(NEOX)(input_ids=torch.ones(BATCH.token_shape, dtype=torch.long)).logits
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        logits.sum().backward()
    shape = [*BATCH.token_shape, WIDTH]
    return sum(one.name == "aten::add" and one.input_shapes[:2] == [shape, shape] for one in profiled.events())


def test_the_residual_of_attention_and_mlp_side_by_side_has_the_gradient_that_attention_waits_with(
    monkeypatch: pytest.MonkeyPatch,
):
    made = made_in_backward()
    monkeypatch.setattr(ops, "shared", lambda x: x)
    num_bytes = 2 * BATCH.micro_batch * BATCH.num_tokens * WIDTH
    assert made - made_in_backward() == {num_bytes: summed_by_torch()}
    assert summed_by_torch() == NUM_LAYERS
