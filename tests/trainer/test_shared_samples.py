"""Samples that ranks share: what each rank gets, and that losses and gradients are those of whole samples."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prepared import run_prepared

from vlmplan.rules.sequences import SHARED_TYPES
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.loop import label_tokens
from vlmplan_trainer.sequence_parallel import part_of_samples

SHARED_SAMPLES = Path(__file__).parent / "shared_samples.py"
TOLERANCE = 2e-6


@given(num_samples=st.integers(1, 3), num_tokens=st.integers(1, 40), num_parts=st.integers(2, 8))
def test_parts_are_the_sample_in_order_with_the_labels_of_next_tokens(num_samples, num_tokens, num_parts):
    ids = torch.arange(num_samples * num_tokens).reshape(num_samples, num_tokens)
    batch = {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
    parts = [part_of_samples(batch, part=part, num_parts=num_parts, pad_id=99) for part in range(num_parts)]
    whole = {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}
    assert len({part["input_ids"].shape for part in parts}) == 1
    assert torch.equal(whole["input_ids"][:, :num_tokens], ids)
    assert torch.equal(whole["shift_labels"][:, : num_tokens - 1], ids[:, 1:])
    assert (whole["shift_labels"][:, num_tokens - 1 :] == IGNORED_LABEL).all()
    assert torch.equal(whole["position_ids"][0], torch.arange(whole["input_ids"].shape[1]))
    assert int(whole["attention_mask"].sum()) == ids.numel()
    assert sum(label_tokens(part) for part in parts) == label_tokens(batch)


def distances(kinds, num_ranks):
    done = run_prepared(SHARED_SAMPLES, [",".join(kinds)], num_ranks=num_ranks)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(kinds), done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line) for line in lines]


def assert_equal(found):
    for one in found:
        assert max(one["loss"], one["gradients"]) < TOLERANCE, one


def test_two_ranks_that_share_samples_have_the_loss_and_gradients_of_one():
    assert_equal(distances(["llama", "qwen3"], 2))


@pytest.mark.sweep
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_model_that_may_be_shared_has_the_loss_and_gradients_of_one(num_ranks):
    """Four ranks have two heads of keys and values between them, which are repeated."""
    assert_equal(distances(sorted(SHARED_TYPES), num_ranks))
