"""The caching allocator over a trace: rounding, segments and pages as torch has them, workspaces where they begin."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_rehearsal import recorded

from vlmplan.memory.allocator import CachingAllocator, OutOfDeviceMemory
from vlmplan.memory.expandable import ExpandableAllocator
from vlmplan.rehearsal.reserved import Replayed, replayed, workspace_place
from vlmplan.rehearsal.result import CACHE_EMPTIED, PhaseSpan, Rehearsed
from vlmplan.units import KIB, MIB

BLOCK, PAGE, LARGE_PAGE = 512, 2 * MIB, 20 * MIB
KINDS = pytest.mark.parametrize("has_expandable_segments", [False, True])


def trace_of(*sizes: int, **begins: int) -> Rehearsed:
    """A rehearsal of these events: a size allocates a new storage, -N frees the N-th, 0 empties the cache. ``begins``:
    where phases do, by their names."""
    events: list[tuple[int, int]] = []
    made: list[int] = []
    for size in sizes:
        if size > 0:
            made.append(size)
            events.append((len(made), size))
        else:
            events.append((-size, -made[-size - 1]) if size else CACHE_EMPTIED)
    marks = tuple(PhaseSpan(begin=at, name=name, step=1, end=len(events)) for name, at in begins.items())
    return Rehearsed(
        rank=0,
        num_ranks=1,
        num_steps=3,
        seconds=0.0,
        num_operations=0,
        checkpoint_bytes=None,
        phases=(),
        collectives=(),
        events=events,
        marks=marks,
    )


def replay(trace: Rehearsed, *, workspaces: Sequence[int] = (), expandable: bool) -> Replayed:
    return replayed(trace, workspaces=workspaces, has_expandable_segments=expandable)


@KINDS
def test_a_byte_takes_a_block_of_a_small_segment(has_expandable_segments: bool):
    found = replay(trace_of(1), expandable=has_expandable_segments)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (BLOCK, PAGE)


@KINDS
def test_storages_without_bytes_take_nothing(has_expandable_segments: bool):
    found = replay(trace_of(), expandable=has_expandable_segments)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (0, 0)


@KINDS
def test_a_freed_block_is_taken_again(has_expandable_segments: bool):
    found = replay(trace_of(3 * MIB, -1, 3 * MIB, -2, 2 * MIB, -3), expandable=has_expandable_segments)
    assert found.peak_reserved_bytes == LARGE_PAGE


def test_native_large_segments_are_as_large_as_the_allocation_rounded_to_2_mib():
    assert replay(trace_of(31 * MIB + 1), expandable=False).peak_reserved_bytes == 32 * MIB


def test_expandable_segments_grow_by_pages_of_20_mib():
    assert replay(trace_of(31 * MIB + 1), expandable=True).peak_reserved_bytes == 2 * LARGE_PAGE
    assert replay(trace_of(31 * MIB, 9 * MIB), expandable=True).peak_reserved_bytes == 2 * LARGE_PAGE
    assert replay(trace_of(31 * MIB, 9 * MIB + 1), expandable=True).peak_reserved_bytes == 3 * LARGE_PAGE


def test_two_freed_neighbours_make_room_for_one_where_segments_grow():
    """The native allocator keeps two segments of 30 MiB apart and takes a third of 60."""
    trace = trace_of(30 * MIB, 30 * MIB, -1, -2, 60 * MIB)
    assert replay(trace, expandable=False).peak_reserved_bytes == (30 + 30 + 60) * MIB
    assert replay(trace, expandable=True).peak_reserved_bytes == 3 * LARGE_PAGE


def test_a_free_end_grows_into_what_is_asked():
    """39 MiB on two pages, then 61 on four: the page that is left over counts."""
    trace = trace_of(39 * MIB, 1 * MIB + BLOCK, -2, 41 * MIB)
    assert replay(trace, expandable=True).peak_reserved_bytes == 4 * LARGE_PAGE


def test_the_span_that_cannot_grow_is_taken_first():
    """Of a hole of 30 MiB and a free end of 25 that has all addresses behind it, 22 go into the hole."""
    allocator = ExpandableAllocator()
    hole = allocator.allocate(30 * MIB)
    allocator.allocate(45 * MIB)
    end = allocator.allocate(25 * MIB)
    allocator.free(hole)
    allocator.free(end)
    assert allocator.allocate(22 * MIB).address == 0


def test_emptying_gives_whole_pages_back_and_no_others():
    allocator = ExpandableAllocator()
    first = allocator.allocate(30 * MIB)
    allocator.allocate(30 * MIB)
    allocator.free(first)  # 0 to 30: one whole page, half of the second
    allocator.empty_cache()
    assert allocator.reserved_bytes == 2 * LARGE_PAGE
    assert allocator.allocate(30 * MIB).address == 0  # mapped anew
    assert allocator.reserved_bytes == 3 * LARGE_PAGE


@KINDS
def test_emptied_caches_of_a_trace_are_emptied(has_expandable_segments: bool):
    found = replay(trace_of(40 * MIB, -1, 0, 20 * MIB), expandable=has_expandable_segments)
    assert found.reserved_bytes == [40 * MIB, 40 * MIB, 0, 20 * MIB]


@KINDS
def test_workspaces_are_there_from_the_first_forward_on(has_expandable_segments: bool):
    trace = trace_of(MIB, MIB, MIB, forward=1)
    assert workspace_place(trace) == 1
    found = replay(trace, workspaces=[8 * MIB, 8 * MIB], expandable=has_expandable_segments)
    assert found.allocated_bytes == [MIB, (2 + 16) * MIB, (3 + 16) * MIB]


@pytest.mark.parametrize("name", ["evaluation", "generation", "generate", "reference"])
@pytest.mark.parametrize(("at", "expected"), [(1, 1), (3, 2)])
def test_what_runs_forward_before_the_first_step_makes_the_workspaces(name: str, at: int, expected: int):
    assert workspace_place(trace_of(MIB, MIB, MIB, forward=2, **{name: at})) == expected


@KINDS
def test_a_card_that_is_too_small_runs_out(has_expandable_segments: bool):
    trace = trace_of(30 * MIB, 30 * MIB)
    with pytest.raises(OutOfDeviceMemory):
        replayed(
            trace, workspaces=(), has_expandable_segments=has_expandable_segments, capacity_bytes=2 * LARGE_PAGE - 1
        )


def test_pages_that_are_free_elsewhere_are_moved_before_a_growing_segment_gives_up():
    """A hole of 40 MiB before a block, then 60 asked on a card of 80: the hole's pages move to the end."""
    trace = trace_of(40 * MIB, 20 * MIB, -1, 60 * MIB)
    found = replayed(trace, workspaces=(), has_expandable_segments=True, capacity_bytes=80 * MIB)
    assert found.reserved_bytes[-1] == 80 * MIB
    with pytest.raises(OutOfDeviceMemory):
        replayed(trace, workspaces=(), has_expandable_segments=False, capacity_bytes=79 * MIB)


@KINDS
def test_a_recorded_rehearsal_reserves_at_least_its_rounded_tensors(has_expandable_segments: bool):
    found = replay(recorded(), expandable=has_expandable_segments)
    rounded = highest = 0
    for _, num_bytes in recorded().events:
        size = -(-abs(num_bytes) // BLOCK) * BLOCK
        rounded += size if num_bytes > 0 else -size
        highest = max(highest, rounded)
    assert found.peak_allocated_bytes >= highest
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes
    assert found.peak_reserved_bytes % (2 * MIB) == 0
    assert len(found.reserved_bytes) == len(recorded().events)


@KINDS
def test_peaks_within_phases_are_at_most_the_whole_and_one_reaches_it(has_expandable_segments: bool):
    found = replay(recorded(), expandable=has_expandable_segments)
    peaks = [found.peak_reserved_within(mark.begin, mark.end) for mark in recorded().marks]
    assert max(peaks) == found.peak_reserved_bytes


SIZES = st.lists(st.one_of(st.integers(1, 2 * MIB), st.integers(1, 90 * MIB)), min_size=1, max_size=40)


@given(sizes=SIZES, choices=st.lists(st.integers(0, 10**6), max_size=60))
def test_laws_of_segments_that_grow(sizes: list[int], choices: list[int]):
    """Spans never overlap, reserved holds allocated, and nothing is left when all is freed and the cache emptied."""
    allocator = ExpandableAllocator()
    live = []
    waiting = list(sizes)
    for choice in [*choices, *range(len(sizes))]:
        if live and choice % 2:
            allocator.free(live.pop(choice % len(live)))
        elif waiting:
            size = waiting.pop()
            live.append(allocator.allocate(size))
            assert 0 <= live[-1].num_bytes - size < BLOCK
        elif choice % 5 == 0:
            allocator.empty_cache()
        assert allocator.allocated_bytes == sum(span.num_bytes for span in live) <= allocator.reserved_bytes
        places = sorted((id(span.stretch), span.address, span.address + span.num_bytes) for span in live)
        assert all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(places))
    for span in live:
        allocator.free(span)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


@given(sizes=SIZES)
def test_without_releases_both_allocators_hold_what_was_asked(sizes: list[int]):
    """Growing segments waste less than a page of each class, the native ones less than a segment an allocation."""
    growing, native = ExpandableAllocator(), CachingAllocator()
    for size in sizes:
        growing.allocate(size)
        native.allocate(size)
    rounded = sum(-(-size // BLOCK) * BLOCK for size in sizes)
    assert growing.allocated_bytes == rounded <= native.allocated_bytes
    assert growing.reserved_bytes < rounded + PAGE + LARGE_PAGE
    assert native.reserved_bytes >= native.allocated_bytes


@KINDS
def test_what_a_stream_frees_is_for_that_stream_alone(has_expandable_segments: bool):
    """Three storages of 30 MiB one after another: the second on a stream of its own, the third on the first again."""
    trace = replace(trace_of(30 * MIB, -1, 30 * MIB, -2, 30 * MIB), streams={2: 1})
    one = 2 * LARGE_PAGE if has_expandable_segments else 30 * MIB
    assert replay(trace, expandable=has_expandable_segments).reserved_bytes == [one, one, 2 * one, 2 * one, 2 * one]
    together = replace(trace, streams={})
    assert replay(together, expandable=has_expandable_segments).peak_reserved_bytes == one


@KINDS
def test_streams_give_up_what_they_keep_before_the_card_is_full(has_expandable_segments: bool):
    trace = replace(trace_of(40 * MIB, -1, 40 * MIB), streams={2: 1})
    found = replayed(trace, workspaces=(), has_expandable_segments=has_expandable_segments, capacity_bytes=79 * MIB)
    assert found.reserved_bytes == [40 * MIB, 40 * MIB, 40 * MIB]


def test_small_and_large_storages_never_share_a_segment():
    for expandable in (False, True):
        found = replay(trace_of(MIB, MIB + KIB), expandable=expandable)
        assert found.peak_reserved_bytes == PAGE + LARGE_PAGE
