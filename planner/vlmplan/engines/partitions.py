"""Slices of the flat buffer of trained parameters, one for each rank under ZeRO 1 and 2."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple, cast

from vlmplan.engines.parameters import FlatBuffer, ParameterTable


class Partition(NamedTuple):
    """The slice of the flat buffer of trained parameters that one rank updates under ZeRO 1 and 2."""

    start: int
    num_elements: int

    @property
    def end(self) -> int:
        return self.start + self.num_elements


NCCL_ALIGNMENT = 2
"""The flat buffer is padded to a multiple of this times the ranks (``nccl_start_alignment_factor``)."""


def partition_elements(num_elements: int, num_ranks: int) -> int:
    """Elements of each rank's slice: the buffer is padded so that all are equal.

    Source: ``align_dense_tensors(..., alignment = nccl_start_alignment_factor * N)`` in ``stage_1_and_2.py``.
    """
    return NCCL_ALIGNMENT * -(-num_elements // (NCCL_ALIGNMENT * num_ranks))


def partition_of(num_elements: int, num_ranks: int, rank: int) -> Partition:
    own = partition_elements(num_elements, num_ranks)
    return Partition(start=rank * own, num_elements=own)


def owned_elements(table: FlatBuffer, partition: Partition) -> int:
    """Elements of all parameters that reach into ``partition``, each whole.

    The gradient buffer of a rank has room for whole parameters, also for those that it shares with a neighbour
    (``copy_grads_in_partition`` in ``stage_1_and_2.py``).
    """
    first, last = overlapping(table, partition)
    return table.ends[last - 1] - table.ends[first] + table.numels[first] if first < last else 0


def overlapping(table: FlatBuffer, partition: Partition) -> tuple[int, int]:
    """The trained parameters that reach into ``partition``, as a range of ordinals."""
    ends = table.ends
    first = bisect_right(ends, partition.start)
    last = bisect_left(ends, partition.end)
    return first, min(last + 1, len(ends))


def slices(table: FlatBuffer, partition: Partition) -> list[int]:
    """Elements of each parameter that lie inside ``partition``."""
    first, last = overlapping(table, partition)
    parameters = zip(table.numels[first:last], table.ends[first:last], strict=True)
    return [_slice(numel, end, partition) for numel, end in parameters]


def _slice(numel: int, end: int, partition: Partition) -> int:
    return min(end, partition.end) - max(end - numel, partition.start)


def largest_slice(table: FlatBuffer, partition: Partition) -> int:
    """The most of ``slices``, 0 where there is none: only the first and the last may be cut."""
    first, last = overlapping(table, partition)
    at_edges = [_slice(table.numels[at], table.ends[at], partition) for at in {first, last - 1} if first < last]
    return max([*table.numels[first + 1 : last - 1], *at_edges], default=0)


def idle_elements(table: ParameterTable, partition: Partition) -> int:
    """How many of ``owned_elements`` are in parameters that get no gradient."""
    return sum([table.numels[ordinal] for ordinal in idle_ordinals(table, partition)])


def idle_ordinals(table: ParameterTable, partition: Partition) -> list[int]:
    """The parameters that reach into ``partition`` and get no gradient."""
    if not table.idle:
        return []
    return [ordinal for ordinal in range(*overlapping(table, partition)) if ordinal in table.idle]


class Share(NamedTuple):
    """Elements of one rank: ``owned_elements``, those of ``idle_elements`` among them, and ``largest_slice``."""

    owned: int
    idle: int
    largest: int

    @property
    def kept(self) -> int:
        """What the step begins with: the buffer of gradients, if any of the rank's parameters gets one, and zeros."""
        return (self.owned if self.owned > self.idle else 0) + self.idle


def shares(table: ParameterTable, num_ranks: int) -> Sequence[Share]:
    """The share of each rank."""
    key = (shares, num_ranks)
    if key not in table.memo:
        partitions = [partition_of(table.num_trained, num_ranks, rank) for rank in range(num_ranks)]
        table.memo[key] = [
            Share(owned_elements(table, partition), idle_elements(table, partition), largest_slice(table, partition))
            for partition in partitions
        ]
    return cast(Sequence[Share], table.memo[key])
