"""The collectives of an optimizer step, counted on one rank.

Bytes are those of the larger side of a collective on this rank, before any factor of a ring: what an all-gather fills,
what a reduce-scatter reads, what an all-reduce works on. A rehearsal counts the same (``rehearse --json``). Collectives
of a few bytes (norms, overflow, the loss) are left out. Which there are is in each engine's file.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vlmplan.architecture.parameter import Parameter
from vlmplan.architecture.trace import GradientReady, GradientTaken, Trace
from vlmplan.engines.parameters import ParameterTable
from vlmplan.units import Choice


class CollectiveKind(Choice):
    """Kinds that engines start, by the names that torch's process groups give them."""

    ALL_REDUCE = "allreduce"
    REDUCE_SCATTER = "reduce_scatter_base"
    ALL_GATHER = "allgather_base"
    ALL_GATHER_OF_LIST = "allgather"
    ALL_TO_ALL = "alltoall_base"


class StepPhase(Choice):
    """The phase of a step in which a collective is started."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Collectives:
    """Collectives of one kind in one phase of an optimizer step, over all its micro batches.

    ``group_size``: number of ranks that take part, each ``ranks_apart`` from the next by its number; ``None``: all.
    """

    kind: CollectiveKind
    phase: StepPhase
    count: int
    num_bytes: int
    group_size: int | None = None
    ranks_apart: int = 1


def exchanges(trace: Trace, num_micro_batches: int, group_size: int) -> list[Collectives]:
    """The all-to-alls among the ranks that share a sample; layers that run again in backward start theirs again."""
    if group_size == 1:
        return []
    forward, *in_backward = (work.exchanges for work in trace.works())
    found: list[Collectives] = []
    for phase, works in ((StepPhase.FORWARD, [forward]), (StepPhase.BACKWARD, in_backward)):
        for sizes in works:
            for num_bytes, count in sizes.items():
                often = num_micro_batches * count
                found.append(Collectives(CollectiveKind.ALL_TO_ALL, phase, often, often * num_bytes, group_size))
    return found


def padded(numel: int, num_ranks: int) -> int:
    """``numel`` made larger so that every rank gets an equal shard."""
    return -(-numel // num_ranks) * num_ranks


def padded_total(sizes: Mapping[int, int], num_ranks: int) -> int:
    """The sum of ``sizes`` (how many of each size), each padded to equal shards."""
    return sum([count * padded(size, num_ranks) for size, count in sizes.items()])


def arrivals(trace: Trace) -> Sequence[tuple[Parameter, int | None]]:
    """The trained parameters with their layers as their gradients arrive. One that no output depends on has none."""
    if arrivals not in trace.memo:
        trained = {
            key: [
                event.parameter
                for event in section.backward
                if isinstance(event, GradientReady | GradientTaken) and event.part.is_last
            ]
            for key, section in trace.sections.items()
        }
        trace.memo[arrivals] = [(one, run.layer) for run, _ in trace.backward() for one in trained[run.key]]
    return trace.memo[arrivals]


class Reductions(NamedTuple):
    """Gradients of one backward: how many of how many elements, the buckets that they fill, and by ordinal those
    larger than a bucket."""

    sizes: Counter[int]
    num_buckets: int
    larger: tuple[int, ...]
    num_elements: int


def reductions(table: ParameterTable, trace: Trace, bucket_elements: int, *, in_parameter_order: bool) -> Reductions:
    """How the gradients of ``trace`` fill reduce buckets, as they arrive or all after backward."""
    key = (reductions, table, bucket_elements, in_parameter_order)
    if key not in trace.memo:
        order = arrivals(trace)
        if in_parameter_order:
            order = sorted(order, key=lambda arrival: table.ordinal(*arrival))
        numels = [parameter.numel for parameter, _ in order]
        num_buckets = waiting = 0
        for numel in numels:
            if overfills(waiting, numel, bucket_elements):
                num_buckets += 1
                waiting = 0
            waiting += numel
        larger = tuple(table.ordinal(*arrival) for arrival in order if arrival[0].numel > bucket_elements)
        trace.memo[key] = Reductions(Counter(numels), num_buckets + (waiting > 0), larger, sum(numels))
    return trace.memo[key]


def overfills(waiting: int, numel: int, bucket_elements: int) -> bool:
    """Whether what waits in the reduce bucket is reduced before ``numel`` more elements come: it would be too full.

    Source: ``reduce_independent_p_g_buckets_and_remove_grads`` in ``stage_1_and_2.py`` and ``stage3.py``.
    """
    return waiting > 0 and waiting + numel > bucket_elements


def chunk_elements(numels: Sequence[int], limit: int) -> list[int]:
    """Elements of each chunk when tensors are gathered until they exceed ``limit``.

    >>> chunk_elements([3, 3, 3], 5)
    [6, 3]
    """
    chunks: list[int] = []
    running = 0
    for numel in numels:
        running += numel
        if running > limit:
            chunks.append(running)
            running = 0
    return [*chunks, running] if running else chunks


def num_chunks(pieces: Sequence[tuple[int, int]], limit: int) -> int:
    """``len(chunk_elements(...))`` of pieces that are given as (elements, how many), in a time that does not depend on
    how many there are.

    >>> num_chunks([(3, 3)], 5), num_chunks([(1, 1), (3, 10**12), (2, 1)], 5)
    (2, 500000000001)
    """
    num_whole = running = 0
    for numel, count in pieces:
        if not numel:
            continue
        missing = (limit - running) // numel + 1  # pieces that make the chunk exceed the limit
        if count < missing:
            running += count * numel
            continue
        more, rest = divmod(count - missing, limit // numel + 1)
        num_whole += 1 + more
        running = rest * numel
    return num_whole + (running > 0)
