"""The caching allocator by hand: sizes as CUDACachingAllocator.cpp rounds, splits, merges and releases them."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmplan.memory.allocator import CachingAllocator, OutOfDeviceMemory
from vlmplan.units import KIB, MIB


def reserved_for(num_bytes: int) -> int:
    allocator = CachingAllocator()
    allocator.allocate(num_bytes)
    return allocator.reserved_bytes


@pytest.mark.parametrize(
    ("num_bytes", "segment_bytes"),
    [
        (1, 2 * MIB),
        (1 * MIB, 2 * MIB),
        (1 * MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (13 * MIB, 14 * MIB),
    ],
)
def test_a_first_allocation_reserves_one_segment_of_its_class(num_bytes, segment_bytes):
    assert reserved_for(num_bytes) == segment_bytes


def test_allocations_are_rounded_to_512_bytes():
    allocator = CachingAllocator()
    allocator.allocate(1)
    allocator.allocate(513)
    assert allocator.allocated_bytes == 512 + 1024


def test_seven_blocks_of_three_mib_need_a_second_segment():
    allocator = CachingAllocator()
    for _ in range(6):  # 6 x 3 = 18 of 20 MiB; 2 MiB are left
        allocator.allocate(3 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(3 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_rest_of_a_mib_or_less_stays_with_its_large_block():
    allocator = CachingAllocator()
    allocator.allocate(11 * MIB)  # segment of 12 MiB: 1 MiB is left, too little to split off
    assert allocator.allocated_bytes == 12 * MIB
    allocator.allocate(13 * MIB - 512)  # segment of 14 MiB: 1 MiB + 512 bytes are left
    assert allocator.allocated_bytes == 12 * MIB + 13 * MIB - 512


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(25 * MIB).address == small.address


def test_free_neighbours_merge_and_serve_a_larger_block():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]  # one segment of 20 MiB
    for block in blocks[1:4]:
        allocator.free(block)
    assert allocator.allocate(12 * MIB).address == blocks[1].address
    assert allocator.reserved_bytes == 20 * MIB


def test_fragments_do_not_serve_a_larger_block():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    for block in (blocks[0], blocks[2], blocks[4]):
        allocator.free(block)  # 12 MiB are free, in three pieces
    allocator.allocate(12 * MIB)
    assert allocator.reserved_bytes == 20 * MIB + 12 * MIB


def test_segments_without_a_living_block_are_given_back_when_the_device_is_full():
    allocator = CachingAllocator(capacity_bytes=64 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    assert allocator.peak_reserved_bytes == 60 * MIB


def test_a_segment_with_a_living_block_is_not_given_back():
    allocator = CachingAllocator(capacity_bytes=64 * MIB)
    first, second = allocator.allocate(5 * MIB), allocator.allocate(5 * MIB)  # one segment of 20 MiB
    allocator.free(second)
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(50 * MIB)
    allocator.free(first)
    allocator.allocate(50 * MIB)


sizes = st.integers(min_value=1, max_value=64 * MIB)
steps = st.lists(st.tuples(st.booleans(), sizes, st.integers(min_value=0, max_value=10**6)), max_size=120)


@given(steps)
def test_reserved_covers_allocated_and_everything_can_be_given_back(sequence):
    allocator, living = CachingAllocator(), []
    for allocates, num_bytes, choice in sequence:
        if allocates or not living:
            living.append(allocator.allocate(num_bytes))
        else:
            allocator.free(living.pop(choice % len(living)))
        assert sum(block.num_bytes for block in living) == allocator.allocated_bytes
        assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes
    for block in living:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


@given(st.lists(sizes, min_size=2, max_size=40))
def test_living_blocks_never_overlap(numbers):
    allocator = CachingAllocator()
    blocks = [allocator.allocate(number) for number in numbers]
    for block in blocks[::2]:
        allocator.free(block)
    living = sorted([*blocks[1::2], *(allocator.allocate(number) for number in numbers)], key=lambda b: b.address)
    for left, right in pairwise(living):
        assert left.address + left.num_bytes <= right.address


def test_small_and_large_allocations_share_no_segment():
    allocator = CachingAllocator()
    allocator.allocate(100 * KIB)
    allocator.allocate(2 * MIB)
    assert allocator.reserved_bytes == 2 * MIB + 20 * MIB


def test_what_a_stream_frees_is_for_that_stream_alone():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    other = allocator.allocate(30 * MIB, 1)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.free(other)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 30 * MIB
    assert allocator.streams == [0, 1]


def test_streams_share_the_capacity_and_give_up_what_they_keep():
    allocator = CachingAllocator(capacity_bytes=60 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(40 * MIB, 1)
    assert allocator.reserved_bytes == 40 * MIB
    with pytest.raises(OutOfDeviceMemory):
        allocator.allocate(30 * MIB)


def reserved_by(*sizes: int) -> int:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.reserved_bytes


@pytest.mark.parametrize("count", [1, 3, 41])
def test_larger_tensors_may_reserve_less(count: int):
    """Below ``kMinLargeAlloc`` a segment is 20 MiB and takes two, from there on it is as large as the tensor: longer
    samples may reserve less under torch's native allocator too."""
    assert reserved_by(*[10 * MIB - 512] * count) == (count + 1) // 2 * 20 * MIB
    assert reserved_by(*[10 * MIB] * count) == count * 10 * MIB
