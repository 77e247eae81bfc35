"""Images of a micro batch are counted: a million are planned as quickly as a thousand, and few exactly as before."""

import cProfile
import pstats

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import shortened
from vlmplan.architecture import packed_lengths
from vlmplan.architecture.packed_lengths import MAX_CALLS, PackedLengths, shares
from vlmplan.catalog import load_catalog
from vlmplan.engines.collectives import chunk_elements, num_chunks
from vlmplan.estimation import Estimate, Estimator
from vlmplan.gpu_choice import chosen_node, parse_gpu_choice
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation
from vlmplan.workload import Workload

RUNS = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 10)), min_size=1, max_size=6)


@given(RUNS, st.integers(1, 10**9))
def test_calls_hold_every_sequence_once(runs: list[tuple[int, int]], num_images: int):
    packed = PackedLengths(tuple(runs), num_images)
    calls = list(packed.calls())
    assert sum(count for _, count in calls) == packed.count
    assert sum(count * length**2 for length, count in calls) == packed.num_pairs
    assert len(calls) <= MAX_CALLS + len(runs)
    if packed.count <= MAX_CALLS:
        assert calls == [(length, 1) for length, count in runs for _ in range(count)] * num_images


@given(st.integers(1, 10**12), st.integers(1, 100))
def test_shares_are_equal_and_whole(total: int, most: int):
    parts = shares(total, most)
    assert sum(parts) == total
    assert len(parts) == min(total, most)
    assert max(parts) - min(parts) <= 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 30)), max_size=5), st.integers(1, 50))
def test_chunks_are_counted_as_they_are_filled(pieces: list[tuple[int, int]], limit: int):
    numels = [numel for numel, count in pieces for _ in range(count)]
    assert num_chunks(pieces, limit) == len(chunk_elements(numels, limit))


def estimated(alias: str, attention: AttentionImplementation, micro_batch: int) -> Estimate:
    workload = Workload(model=shortened(alias, num_hidden_layers=1), images_per_sample=1)
    recipe = Recipe(zero_stage=2, micro_batch=micro_batch, attention=attention, train_vision=True)
    node = chosen_node(parse_gpu_choice("h200-sxm"), load_catalog()).node
    return Estimator(workload, recipe).estimate(recipe, Cluster(node=node))


@pytest.mark.parametrize("attention", [AttentionImplementation.SDPA, AttentionImplementation.EAGER])
@pytest.mark.parametrize("alias", ["qwen2-vl-2b", "qwen2.5-vl-3b"])
def test_calls_that_stand_for_several_change_a_peak_by_little(
    monkeypatch: pytest.MonkeyPatch, alias: str, attention: AttentionImplementation
):
    monkeypatch.setattr(packed_lengths, "MAX_CALLS", 10**6)
    exact = estimated(alias, attention, 96)
    monkeypatch.setattr(packed_lengths, "MAX_CALLS", 48)
    shared = estimated(alias, attention, 96)
    assert shared.flops_per_step == exact.flops_per_step
    assert shared.peak_allocated_bytes == pytest.approx(exact.peak_allocated_bytes, rel=0.005)
    assert shared.device.reserved_bytes == pytest.approx(exact.device.reserved_bytes, rel=0.01)


@pytest.mark.sweep
@pytest.mark.parametrize("attention", list(AttentionImplementation))
def test_a_million_images_take_no_more_calls_than_ten_thousand(attention: AttentionImplementation):
    def num_calls(micro_batch: int) -> int:
        profile = cProfile.Profile()
        profile.runcall(estimated, "qwen2-vl-2b", attention, micro_batch)
        return pstats.Stats(profile).total_calls  # pyright: ignore[reportAttributeAccessIssue]

    assert num_calls(10**6) < 1.2 * num_calls(10**4)
