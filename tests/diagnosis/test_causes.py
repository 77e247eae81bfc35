"""The message alone proves why: what was asked for beside what was free, unused, and others'."""

from hypothesis import given
from hypothesis import strategies as st

from vlmplan.diagnosis.causes import OWN_OVERHEAD_BYTES, Cause, balance_of, cause_of
from vlmplan.memory.overhead import reserve_bytes
from vlmplan.memory_messages import Kind, MemoryMessage
from vlmplan.units import GIB, MIB


def message(
    requested: float, free: float, allocated: float, reserved: float, total: float = 80, **more
) -> MemoryMessage:
    sizes = {"requested": requested, "free": free, "allocated": allocated, "reserved": reserved, "total": total}
    return MemoryMessage(
        kind=Kind.DEVICE,
        form="torch's allocator",
        text="",
        start=0,
        end=0,
        **{f"{name}_bytes": round(size * GIB) for name, size in sizes.items()},
        **more,
    )


def cause(found: MemoryMessage) -> Cause:
    return cause_of(found, balance_of(found))


def test_what_neither_is_free_nor_unused_is_true_need():
    found = message(requested=4, free=1.5, allocated=75, reserved=76.25, in_use_bytes=78 * GIB)
    assert cause(found) is Cause.TRUE_NEED
    assert balance_of(found).missing_bytes == (4 * 4 - 6 - 5) * GIB // 4


def test_what_is_unused_in_pieces_is_fragmentation():
    assert (
        cause(message(requested=2, free=0.5, allocated=60, reserved=78, in_use_bytes=79 * GIB)) is Cause.FRAGMENTATION
    )
    assert cause(message(requested=2, free=0.5, allocated=76.75, reserved=78, in_use_bytes=79 * GIB)) is Cause.TRUE_NEED


def test_pieces_that_joined_would_leave_a_plan_no_reserve_are_a_full_card():
    """huggingface/trl#2819 (3.80 GiB), axolotl#1717 (4-bit weights of 70 B that fill 23.68 GiB), stanford_alpaca#76."""
    small = message(150 / 1024, 130.31 / 1024, 3.52, 3.52 + 53.87 / 1024, total=3.8, in_use_bytes=round(3.66 * GIB))
    loading = message(112 / 1024, 60.31 / 1024, 23.15, 23.15 + 64.54 / 1024, 23.68, in_use_bytes=round(23.61 * GIB))
    old = message(388 / 1024, 315.69 / 1024, 21.91, 22.09, 23.7)
    for found in (small, loading, old):
        assert balance_of(found).missing_bytes == 0
        assert 0 < balance_of(found).left_bytes < reserve_bytes(found.total_bytes)
        assert cause(found) is Cause.FULL_CARD
    """abacaj/fine-tune-mistral#3: 2.06 GiB in pieces for 0.71."""
    assert cause(message(732 / 1024, 0, 20.62, 22.68, 24)) is Cause.FRAGMENTATION


def test_without_other_processes_it_would_have_been_granted():
    found = message(
        requested=20,
        free=12,
        allocated=27,
        reserved=31,
        in_use_bytes=32 * GIB,
        processes=((7, 18 * GIB), (8, 17 * GIB)),
    )
    assert cause(found) is Cause.OTHER_PROCESSES
    assert (balance_of(found).other_bytes, balance_of(found).pids) == (35 * GIB, (7, 8))
    small = message(requested=60, free=12, allocated=27, reserved=31, in_use_bytes=32 * GIB, processes=((7, 18 * GIB),))
    assert cause(small) is Cause.TRUE_NEED


def test_in_a_container_this_process_is_the_one_that_can_hold_what_torch_reserved():
    """Pids differ there, so torch names this process as any other (ms-swift#2010: one process of 77.49 GiB)."""
    found = message(requested=4, free=1.5, allocated=75, reserved=76.5, processes=((977732, 77 * GIB + 500 * MIB),))
    assert balance_of(found).other_bytes == 0
    assert balance_of(found).overhead_bytes == GIB // 2 + 500 * MIB
    assert cause(found) is Cause.TRUE_NEED


def test_what_nobody_lists_is_anothers_if_it_is_more_than_libraries_take():
    """torch 2.0 lists no processes: what is neither free nor its own is somebody's."""
    shared = message(requested=3, free=1, allocated=10, reserved=11, total=24)
    assert balance_of(shared).other_bytes == 12 * GIB
    assert cause(shared) is Cause.OTHER_PROCESSES
    alone = message(requested=2, free=1, allocated=20, reserved=22, total=24)
    assert balance_of(alone).other_bytes == 0


def test_a_limit_is_a_limit_although_more_is_free():
    assert cause(message(requested=2, free=60, allocated=9, reserved=9, allowed_bytes=10 * GIB)) is Cause.MEMORY_LIMIT


def test_without_sizes_nothing_is_proved():
    bare = MemoryMessage(kind=Kind.DEVICE, form="", text="", start=0, end=0)
    assert cause(bare) is Cause.UNKNOWN
    assert balance_of(bare).missing_bytes is None


def test_the_kind_is_the_cause_where_it_is_not_a_gpus_memory():
    causes = {
        Kind.HOST: Cause.HOST_MEMORY,
        Kind.KILLED: Cause.KILLED,
        Kind.DISK: Cause.DISK,
        Kind.SHARED_MEMORY: Cause.SHARED_MEMORY,
    }
    assert causes == {kind: cause(MemoryMessage(kind=kind, form="", text="", start=0, end=0)) for kind in causes}


QUARTERS = st.integers(0, 400).map(lambda quarters: quarters / 4)


@given(QUARTERS, QUARTERS, QUARTERS, QUARTERS, QUARTERS)
def test_a_cause_is_named_only_where_the_numbers_bear_it(
    requested: float, free: float, allocated: float, unused: float, others: float
):
    found = message(
        requested + free + 0.25, free, allocated, allocated + unused, total=allocated + unused + free + others
    )
    named, balance = cause(found), balance_of(found)
    assert balance.missing_bytes is not None
    if named in (Cause.FRAGMENTATION, Cause.FULL_CARD):
        assert unused >= requested + 0.25
        is_left = (unused - requested - 0.25) * GIB >= reserve_bytes(found.total_bytes)
        assert is_left == (named is Cause.FRAGMENTATION)
    elif named is Cause.OTHER_PROCESSES:
        assert others * GIB > OWN_OVERHEAD_BYTES
        assert others >= requested + 0.25
    else:
        assert named is Cause.TRUE_NEED
        assert balance.missing_bytes == (requested + 0.25 - unused) * GIB
