"""Flat buffers and shards: every element of every parameter has exactly one owner, and padding is what it must be."""

from hypothesis import given
from hypothesis import strategies as st

from small_models import table_of
from vlmplan.engines.parameters import sharded_elements
from vlmplan.engines.partitions import overlapping, owned_elements, partition_elements, partition_of, shares, slices

numels = st.lists(st.integers(min_value=1, max_value=5000), min_size=1, max_size=40)
ranks = st.integers(min_value=1, max_value=1024)


@given(st.integers(min_value=1, max_value=10**12), ranks)
def test_partitions_cover_the_flat_buffer_with_less_than_two_elements_a_rank_to_spare(num_elements, num_ranks):
    size = partition_elements(num_elements, num_ranks)
    assert num_elements <= size * num_ranks < num_elements + 2 * num_ranks
    assert [partition_of(num_elements, num_ranks, rank).start for rank in (0, num_ranks - 1)] == [
        0,
        size * (num_ranks - 1),
    ]


@given(numels, ranks)
def test_shards_of_all_ranks_cover_every_parameter(counts, num_ranks):
    each = [-(-numel // num_ranks) for numel in counts]
    assert all(shard * num_ranks >= numel for shard, numel in zip(each, counts, strict=True))
    assert sharded_elements(counts, num_ranks) == sum(each)


@given(numels, st.integers(min_value=1, max_value=40))
def test_what_reaches_into_a_partition_is_found_whole(counts, num_ranks):
    table = table_of(counts)
    for rank in range(num_ranks):
        partition = partition_of(sum(counts), num_ranks, rank)
        starts = [end - numel for end, numel in zip(table.ends, counts, strict=True)]
        inside = [
            ordinal
            for ordinal, (start, end) in enumerate(zip(starts, table.ends, strict=True))
            if start < partition.end and end > partition.start
        ]
        assert list(range(*overlapping(table, partition))) == inside
        assert owned_elements(table, partition) == sum(counts[ordinal] for ordinal in inside)


@given(numels, st.integers(min_value=1, max_value=40))
def test_each_rank_has_a_share_of_whole_parameters_and_of_its_slices(counts, num_ranks):
    table = table_of(counts)
    found = shares(table, num_ranks)
    assert len(found) == num_ranks
    for rank, share in enumerate(found):
        partition = partition_of(sum(counts), num_ranks, rank)
        assert share == (owned_elements(table, partition), 0, max(slices(table, partition), default=0))
        assert share.kept == share.owned
    assert sum(share.owned for share in found) >= sum(counts)
