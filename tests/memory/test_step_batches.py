"""Micro batches of a step that are on the GPU together, as the caching allocator meets them."""

from vlmplan.memory.allocator import CachingAllocator
from vlmplan.memory.step_batches import StepBatches

MIB = 2**20


def test_micro_batches_of_a_step_come_before_those_of_the_step_before_go():
    allocator = CachingAllocator()
    batches = StepBatches(allocator, [30 * MIB, 12 * MIB], 2)
    batches.come()
    assert allocator.allocated_bytes == 2 * (30 + 12) * MIB
    batches.come()
    assert allocator.allocated_bytes == 2 * (30 + 12) * MIB
    assert allocator.peak_reserved_bytes == 2 * 2 * (30 + 12) * MIB
    before = batches.state()
    batches.come()  # into the places that the first ones left
    assert allocator.peak_reserved_bytes == 2 * 2 * (30 + 12) * MIB
    assert batches.state() != before


def test_what_a_trace_makes_for_its_batch_is_there_already_but_for_what_is_cast():
    batches = StepBatches(CachingAllocator(), [8 * MIB, 32 * MIB, 4 * MIB], 2)
    batches.come()
    made = [(7, 8 * MIB), (8, 32 * MIB), (9, 16 * MIB), (10, 4 * MIB)]  # 9 is 8 in 16 bits
    found = [batches.matching(place, made) for place in (0, 1)]
    assert [list(blocks) for blocks in found] == [[7, 8, 10]] * 2
    assert not {block.address for block in found[0].values()} & {block.address for block in found[1].values()}


def test_without_batches_of_a_step_each_is_made_in_its_turn():
    batches = StepBatches(CachingAllocator(), (), 0)
    batches.come()
    assert batches.matching(0, [(1, MIB)]) == {}
