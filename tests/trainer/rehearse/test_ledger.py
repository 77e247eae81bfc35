"""Laws of the ledger: what is alive is the sum of what is there, and no more than the highest moment."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from vlmplan_trainer.rehearse.ledger import NAMED_BYTES, Ledger

SIZES = st.lists(st.integers(0, 5000), max_size=20)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("make"), st.integers(1, 5000)),
        st.tuples(st.just("view"), st.integers(0, 30)),
        st.tuples(st.just("forget"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(1, 9000)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=40,
)


def ledger() -> Ledger:
    return Ledger(counts_host_as_device=True, is_in_phase=True)


def noted(of: Ledger, num_bytes: int) -> torch.Tensor:
    tensor = torch.empty(num_bytes, dtype=torch.uint8)
    of.note(tensor, "made", lambda: "maker")
    return tensor


@given(ACTIONS)
def test_live_bytes_are_those_of_the_storages_that_are_there(actions: list[tuple[str, Any]]):
    kept, tensors = ledger(), []
    highest = 0
    for action, value in actions:
        if action == "make":
            tensors.append(noted(kept, value))
        elif action == "view" and tensors:
            tensor = tensors[value % len(tensors)]
            kept.note(tensor.view(-1)[: max(1, value)], "view", lambda: "")
        elif action == "forget" and tensors:
            del tensor, tensors[value % len(tensors)]
        elif action == "pass":
            kept.pass_through([value, 3])
            highest = max(highest, kept.device.live_bytes + value + 3)
        elif action == "restart":
            kept.restart_peaks()
            highest = kept.device.live_bytes
        tensor = None
        alive = sum(entry.num_bytes for entry in kept.entries.values())
        highest = max(highest, alive)
        assert kept.device.live_bytes == alive == sum(tensor.numel() for tensor in tensors)
        assert kept.device.live_bytes == sum(size for _, size in kept.device.events)
        assert kept.device.peak_bytes == highest >= alive


@given(SIZES)
def test_events_name_each_storage_once_when_it_comes_and_once_when_it_goes(sizes: list[int]):
    kept = ledger()
    tensors = [noted(kept, size) for size in sizes]
    tensors.clear()
    comes = [number for number, size in kept.device.events[: len(sizes)]]
    goes = [number for number, size in kept.device.events[len(sizes) :]]
    assert len(set(comes)) == len(sizes)
    assert sorted(goes) == sorted(comes)
    assert not kept.entries
    assert kept.device.live_bytes == kept.host.live_bytes == 0


def test_host_and_device_are_counted_apart():
    kept = Ledger()
    tensor = noted(kept, 7)
    kept.pass_through([11])
    assert (kept.host.live_bytes, kept.device.live_bytes) == (tensor.numel(), 0)
    assert (kept.host.peak_bytes, kept.device.peak_bytes) == (7, 11)


def test_what_is_made_between_phases_of_cpu_ranks_is_not_seen():
    kept = ledger()
    kept.is_in_phase = False
    between = noted(kept, 7)
    kept.is_in_phase = True
    inside = noted(kept, 11)
    assert kept.device.live_bytes == inside.numel()
    assert kept.number_of(between.untyped_storage()) is None
    assert kept.number_of(inside.untyped_storage()) is not None


def test_only_large_storages_are_remembered_with_their_maker():
    kept = ledger()
    small, large = noted(kept, NAMED_BYTES - 1), noted(kept, NAMED_BYTES)
    names = {entry.num_bytes: entry.maker for entry in kept.entries.values()}
    assert names == {small.numel(): "", large.numel(): "maker"}


def test_snapshot_is_taken_once_where_the_watched_height_is_reached():
    kept, taken = ledger(), []
    kept.watched_bytes, kept.snapshot = 12, lambda: taken.append(kept.device.live_bytes)
    tensors = [noted(kept, size) for size in (5, 7, 11)]
    assert taken == [5 + 7]
    assert sum(tensor.numel() for tensor in tensors) == kept.device.peak_bytes


@given(st.integers(1, 5000), st.integers(1, 9000))
def test_a_gpu_counts_whole_blocks_and_the_host_what_was_asked_for(num_bytes: int, workspace: int):
    kept = Ledger(is_in_phase=True, block_bytes=512)
    tensor = noted(kept, num_bytes)
    kept.pass_through([workspace])
    assert kept.host.live_bytes == num_bytes == tensor.numel()
    assert workspace <= kept.device.peak_bytes < workspace + 512
    assert kept.device.peak_bytes % 512 == kept.device.live_bytes == 0
