"""Liger's fused loss beside what its own code holds (``liger_storages.json``, by ``tests/tools/liger_storages.py``)."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planned import cluster, workload
from vlmplan.architecture.losses.liger import liger_loss
from vlmplan.architecture.modules import Linear
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.tensor import packed_node
from vlmplan.architecture.trace import Span
from vlmplan.estimation import estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, liger_chunk_tokens
from vlmplan.units import DType

COUNTED = json.loads((Path(__file__).parent / "liger_storages.json").read_text())
DTYPES = {dtype.torch_name: dtype for dtype in DType}


def planned(num_tokens, hidden_size, vocab_size, *, hidden, weight, autocast, trains, caches):
    """(peak, kept) bytes of the forward alone."""
    tape = Tape(autocast=DTYPES.get(autocast), follows_weights=False, caches_casts=caches)
    head = Linear(hidden_size, vocab_size)
    head.weight.dtype, head.weight.requires_grad = DTYPES[weight], trains
    with tape.section("before"):
        states = tape.tensor((1, num_tokens, hidden_size), DTYPES[hidden], packed_node())
    with tape.head():
        loss = liger_loss(states, head)
    (span,) = [event for event in tape.trace().sections["head"].forward if isinstance(event, Span)]
    del loss
    return span.peak_bytes, span.delta_bytes


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: "-".join(map(str, row.values())))
def test_peak_and_kept_bytes_are_those_of_ligers_own_code(row):
    peak, kept = row.pop("peak_bytes"), row.pop("kept_bytes")
    sizes = [row.pop(name) for name in ("num_tokens", "hidden_size", "vocab_size")]
    assert planned(*sizes, **row) == (peak, kept)


@settings(max_examples=50)
@given(st.integers(1, 100_000), st.integers(1, 10_000), st.integers(2, 300_000))
def test_a_chunk_is_the_power_of_two_that_liger_takes(num_tokens, hidden_size, vocab_size):
    chunk = liger_chunk_tokens(num_tokens, hidden_size, vocab_size)
    wanted = -(-num_tokens // -(-vocab_size // hidden_size))
    power = next(2**n for n in range(40) if 2**n >= wanted)  # triton.next_power_of_2
    assert chunk == min(num_tokens, power)


def test_the_loss_computes_what_the_chunked_one_does():
    """Forward, and the gradients of hidden states and head."""
    found = [
        estimate(workload("llama-3.2-1b", seq_len=1000), Recipe(loss=loss), cluster()).flops_per_step
        for loss in (LossKind.LIGER, LossKind.CHUNKED)
    ]
    assert found[0] == found[1]
