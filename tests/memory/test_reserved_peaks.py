"""Replays that share what they found: the same bytes as each gives alone, whatever room a GPU has."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import cluster, decided, of_few_layers, shipped_gpus, workload
from vlmplan.estimation import Estimator
from vlmplan.hardware import Cluster, Node
from vlmplan.memory.allocator import Block, CachingAllocator, OutOfDeviceMemory
from vlmplan.memory.device import Verdict, device_memory, fitting_bytes, shows_at_most
from vlmplan.memory.overhead import ProcessGroup
from vlmplan.memory.reserved_peaks import ReservedPeak, ReservedPeaks
from vlmplan.recipe.choices import Method, Offload
from vlmplan.request.setup import resolved_recipe
from vlmplan.units import MIB

ON_ONE = cluster("l4")
CHANGES = st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=30)
"""Bytes that are allocated, how many of the oldest blocks are freed before, and on which stream."""


def replay_of(changes: list[tuple[int, int, int]], *, goes_on: bool = False) -> Callable[..., ReservedPeak]:
    """``goes_on``: as an estimator's replays do where nothing is to end early."""

    def replay(capacity_bytes: int | None, most_bytes: int | None = None) -> ReservedPeak:
        on = goes_on and most_bytes is None
        allocator = CachingAllocator(capacity_bytes=capacity_bytes, most_bytes=most_bytes, goes_on=on)
        held: list[Block] = []
        for num_bytes, num_freed, stream in changes:
            for block in held[:num_freed]:
                allocator.free(block)
            held = [*held[num_freed:], allocator.allocate(num_bytes, stream)]
        return ReservedPeak(allocator.peak_reserved_bytes, allocator.was_short, allocator.ran_out)

    return replay


def outcome(total_bytes: Callable[[], int]) -> int | None:
    try:
        return total_bytes()
    except OutOfDeviceMemory:
        return None


@given(CHANGES, st.lists(st.none() | st.integers(1, 600).map(lambda count: count * MIB), min_size=1, max_size=6))
def test_a_replay_that_is_known_gives_what_one_of_the_same_capacity_gives(changes, capacities):
    replay, going_on, known = replay_of(changes), replay_of(changes, goes_on=True), ReservedPeaks()
    for capacity in capacities:
        shared = outcome(lambda: known.total_bytes("setup", going_on, capacity))  # noqa: B023 called at once
        assert shared == outcome(lambda: replay(capacity).total_bytes)  # noqa: B023


@given(CHANGES, st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600)), min_size=1, max_size=6))
def test_a_replay_that_ends_early_says_whether_one_to_the_end_stays_within_as_much(changes, asked):
    replay, going_on, known = replay_of(changes), replay_of(changes, goes_on=True), ReservedPeaks()
    for capacity_mib, most_mib in asked:
        capacity, most = max(capacity_mib, most_mib) * MIB, most_mib * MIB
        found = outcome(lambda: replay(capacity).total_bytes)  # noqa: B023 called at once
        assert known.stays_within("setup", going_on, capacity, most) is (found is not None and found <= most)
        assert outcome(lambda: known.total_bytes("setup", going_on, capacity)) == found  # noqa: B023


def with_room(num_bytes: int) -> Cluster:
    """A GPU with so much room beside its context."""
    overhead = device_memory(0, ON_ONE, ProcessGroup.NONE).overhead_bytes
    gpu = replace(ON_ONE.node.gpu, cuda_visible_bytes=overhead + num_bytes)
    return Cluster(node=Node(gpu=gpu, num_gpus=1))


def tensor_bytes(changes: list[tuple[int, int, int]]) -> int:
    """The most that is allocated at once."""
    held, most = list[int](), 0
    for num_bytes, num_freed, _ in changes:
        held = [*held[num_freed:], num_bytes]
        most = max(most, sum(held))
    return most


@given(CHANGES, st.integers(1, 600), st.integers(0, 900))
def test_whether_a_gpu_shows_so_much_is_what_all_that_it_would_show_says(changes, room_mib, asked_mib):
    """On a GPU with so much room beside its context; more may be asked for than it has."""
    group, overhead = ProcessGroup.NONE, device_memory(0, ON_ONE, ProcessGroup.NONE).overhead_bytes
    on = with_room(room_mib * MIB)
    replay, known, allocated = replay_of(changes), ReservedPeaks(), tensor_bytes(changes)
    shown = device_memory(allocated, on, group, lambda capacity: replay(capacity).total_bytes).device_bytes
    asked = overhead + asked_mib * MIB
    assert shows_at_most(asked, allocated, on, group, partial(known.stays_within, "setup", replay)) is (shown <= asked)


@given(CHANGES, st.integers(1, 600).map(lambda count: count * MIB))
def test_more_room_than_is_ever_reserved_changes_nothing(changes, more):
    replay = replay_of(changes)
    assert replay(replay(None).total_bytes + more) == replay(None)


def reserved_bytes(estimator: Estimator, on: Cluster, method: Method, stage: int, offload: Offload) -> int:
    fields = {"method": method, "zero_stage": stage, "offload_params": offload, "expandable_segments": False}
    recipe, _ = resolved_recipe(decided(**fields), on, estimator.workload.model)
    return estimator.estimate(recipe, on).device.reserved_bytes


def test_gpus_engines_and_ranks_that_share_an_estimator_reserve_what_each_does_alone():
    samples = workload(of_few_layers("smollm2-135m"), seq_len=256)
    machines = [cluster(gpu, num_gpus=count) for gpu, count in (("l4", 2), ("h100-sxm", 2), ("a10", 2), ("l4", 3))]
    setups = [
        (on, Method.LORA, stage, offload)
        for on in machines
        for stage, offload in ((2, Offload.NONE), (3, Offload.NONE))
    ]
    setups += [(machines[0], Method.LORA, 3, Offload.CPU)]
    first, _ = resolved_recipe(decided(method=Method.LORA), machines[0], samples.model)
    shared = Estimator(samples, first)
    for setup in setups:
        assert reserved_bytes(shared, *setup) == reserved_bytes(Estimator(samples, first), *setup), setup


@pytest.mark.parametrize("memory_mib", [1500, 1760, 1850, 2600, 3200])
def test_what_is_said_to_fit_without_an_estimate_does_by_one(memory_mib: int):
    samples = workload(of_few_layers("smollm2-135m"), seq_len=256)
    gpu = replace(shipped_gpus()["l4"], memory_bytes=memory_mib * MIB, cuda_visible_bytes=memory_mib * MIB)
    on = Cluster(node=Node(gpu=gpu, num_gpus=2))
    for expandable, stage in product((False, True), (None, 2)):
        fields = {"method": Method.LORA, "zero_stage": stage, "expandable_segments": expandable}
        recipe, _ = resolved_recipe(decided(**fields), on, samples.model)
        estimator = Estimator(samples, recipe)
        fits = estimator.shows_at_most(fitting_bytes(on), recipe, on, estimator.timeline(recipe, on))
        assert fits is (Estimator(samples, recipe).estimate(recipe, on).device.verdict is Verdict.FITS)


def test_a_peak_that_is_all_there_is_room_for_is_known_without_another_replay():
    replays: list[int | None] = []

    def replay(capacity_bytes: int | None, most_bytes: int | None = None) -> ReservedPeak:
        replays.append(capacity_bytes)
        return ReservedPeak(40 * MIB, was_short=False)

    known = ReservedPeaks()
    assert known.total_bytes("setup", replay, 80 * MIB) == known.total_bytes("setup", replay, 40 * MIB) == 40 * MIB
    assert known.stays_within("setup", replay, 40 * MIB, 40 * MIB)
    assert not known.stays_within("setup", replay, 80 * MIB, 40 * MIB - 1)
    assert replays == [80 * MIB]


def test_a_setup_whose_tensors_fit_and_whose_segments_do_not_is_replayed_once():
    changes, replays = [(50 * MIB, 0, 0), (30 * MIB, 1, 0), (44 * MIB, 0, 0)], list[int | None]()

    def replay(capacity_bytes: int | None, most_bytes: int | None = None) -> ReservedPeak:
        replays.append(capacity_bytes)
        return replay_of(changes, goes_on=True)(capacity_bytes, most_bytes)

    room, known = 76 * MIB, ReservedPeaks()
    total_bytes = partial(known.total_bytes, "setup", replay)
    device = device_memory(tensor_bytes(changes), with_room(room), ProcessGroup.NONE, total_bytes)
    assert device.allocated_bytes < room
    assert (device.runs, device.reserved_bytes) == (False, replay_of(changes)(None).total_bytes)
    assert outcome(lambda: total_bytes(room)) is None
    assert not known.stays_within("setup", replay, room, room)
    assert replays == [room]
