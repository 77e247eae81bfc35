"""A loop of which one turn stands for all that are as it is leaves the trace of one that runs them all.

That is so whatever the number of turns, since what each in between leaves, takes and computes is the same: held here to
the events, peaks and work of every section, of every family that runs such loops.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from architecture.test_families_kimi_linear import CONFIG as KIMI
from architecture.test_families_olmo_hybrid import CONFIG as OLMO
from architecture.test_families_qwen3_5 import TEXT as QWEN
from architecture.test_joined_calls import plain
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.families import build_model
from vlmplan.architecture.loop_recorder import NUM_FIRST, NUM_LAST
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.recipe.choices import LossKind
from vlmplan.units import DType

CHUNK = 64
CONFIGS = {"gated delta rule": QWEN, "with a Linear for each": OLMO, "Kimi delta rule": KIMI}


class EveryTurn(Tape):
    runs_every_call = True


def traces(config: dict[str, Any], batch: Batch, *, frozen: str = "", checkpoints: bool, **of_tape: Any) -> list[Trace]:
    """(one turn for equal ones, every turn) of the same model."""
    model = build_model(config)
    for named in model.parameters():
        named.parameter.requires_grad = not frozen or frozen not in named.name
    for part, stack in model.stacks():
        stack.checkpoints = checkpoints and part is Part.LANGUAGE
    backend = AttentionBackend(implementation="sdpa", gets_mask=True)
    return [model.run(kind(**of_tape), batch, backend, loss=LossKind.CHUNKED) for kind in (Tape, EveryTurn)]


def assert_equal(short: Trace, every: Trace) -> None:
    assert short.schedule == every.schedule
    for key, section in every.sections.items():
        one = short.sections[key]
        assert plain(one.forward) == plain(section.forward), key
        assert plain(one.backward) == plain(section.backward), key
        for phase in ("forward_work", "recompute_work", "backward_work"):
            mine, work = getattr(one, phase), getattr(section, phase)
            assert mine == work, (key, phase)
            assert [*mine.matmuls] == [*work.matmuls], (key, phase)  # sums of seconds are in this order
            assert [*mine.float32_matmuls] == [*work.float32_matmuls], (key, phase)
        assert one.unreleased_bytes == section.unreleased_bytes
        assert one.recomputed_bytes == section.recomputed_bytes
    assert plain(short.after) == plain(every.after)


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=6, deadline=None)
@given(
    num_tokens=st.integers(1, 14 * CHUNK),
    micro_batch=st.integers(1, 3),
    checkpoints=st.booleans(),
    frozen=st.sampled_from(["", "layers", "proj", "embed"]),
    autocast=st.sampled_from([None, DType.BFLOAT16]),
    follows_weights=st.booleans(),
    accumulates_in_place=st.booleans(),
)
def test_one_turn_stands_for_all_that_are_as_it_is(
    name: str, num_tokens: int, micro_batch: int, checkpoints: bool, frozen: str, **of_tape: Any
):
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens)
    assert_equal(*traces(CONFIGS[name], batch, frozen=frozen, checkpoints=checkpoints, **of_tape))


@pytest.mark.parametrize("num_chunks", range(1, NUM_FIRST + NUM_LAST + 4))
@pytest.mark.parametrize("name", CONFIGS)
def test_so_it_is_from_the_first_loop_that_is_shortened(name: str, num_chunks: int):
    batch = Batch(micro_batch=1, num_tokens=num_chunks * CHUNK)
    assert_equal(*traces(CONFIGS[name], batch, checkpoints=True))


def test_a_long_loop_takes_no_more_nodes_than_a_short_one():
    counted: list[int] = []
    for num_chunks in (8, 200):
        tape = Tape()
        backend = AttentionBackend(implementation="sdpa", gets_mask=True)
        model, batch = build_model(QWEN), Batch(micro_batch=1, num_tokens=num_chunks * CHUNK)
        model.run(tape, batch, backend, loss=LossKind.CHUNKED)
        counted.append(tape.num_nodes)
    assert counted[0] == counted[1]
