"""The collectives of one optimizer step, as DeepSpeed 0.19.8 starts them on one rank.

Bytes are those of the larger side of a message on this rank, before any factor of a ring: what an all-gather fills,
what a reduce-scatter reads, what an all-reduce works on. A rehearsal counts the same (``rehearse --json``). Messages of
a few bytes (norms, overflow, the loss) are left out.

stage 0   gradients, in chunks, after the last micro batch (``buffered_allreduce_fallback``)
stage 1   gradients, bucket by bucket, in or after the backward of the last micro batch; updated weights in one gather
stage 2   the same after every micro batch. Buckets are all-reduced whole (``use_multi_rank_bucket_allreduce``)
stage 3   weights for every module's forward and backward, where they are not whole yet (``memory.gathering``), and
          gradients reduced and scattered bucket by bucket, every micro batch; small weights after the step, each alone
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from vlmplan.architecture.tensor import Parameter
from vlmplan.architecture.trace import GradientReady, GradientTaken, Trace
from vlmplan.communication.collectives import Collective
from vlmplan.memory.gather_walk import gather_walk
from vlmplan.memory.gathering import num_wrappers
from vlmplan.memory.parameters import ParameterTable, partition_size
from vlmplan.memory.timeline import STAGE0_CHUNK_ELEMENTS, chunk_elements
from vlmplan.recipe import Recipe
from vlmplan.units import Choice


class When(Choice):
    """The phase of a step in which a message is sent."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Messages:
    """Collectives of one kind in one phase of an optimizer step, over all its micro batches.

    ``group_size``: ranks that take part, neighbours of one another; ``None``: all.
    """

    kind: Collective
    when: When
    count: int
    num_bytes: int
    group_size: int | None = None


def traffic(table: ParameterTable, recipe: Recipe, *, num_ranks: int, trace: Trace) -> tuple[Messages, ...]:
    """What one rank sends in an optimizer step of ``grad_accum`` micro batches like ``trace``.

    A single rank sends gradients to itself, as DeepSpeed does; plain PyTorch sends nothing.
    """
    if recipe.zero_stage is None:
        return ()
    if recipe.zero_stage == 3:
        return tuple(message for message in _stage3(table, recipe, num_ranks, trace) if message.count)
    p = table.trained_dtype.num_bytes
    if recipe.zero_stage == 0:
        chunks = len(chunk_elements(table.numels, STAGE0_CHUNK_ELEMENTS))
        return (Messages(Collective.ALL_REDUCE, When.BACKWARD, chunks, table.trained_bytes),)
    often = recipe.grad_accum if recipe.zero_stage == 2 else 1
    buckets, num_elements = _reductions(table, recipe, num_ranks, trace)
    gradients = Messages(Collective.ALL_REDUCE, When.BACKWARD, often * buckets, often * num_elements * p)
    if num_ranks == 1:
        return (gradients,)
    weights = partition_size(table.num_trained, num_ranks) * num_ranks * p
    return gradients, Messages(Collective.ALL_GATHER, When.STEP, 1, weights)


def _stage3(table: ParameterTable, recipe: Recipe, num_ranks: int, trace: Trace) -> Iterable[Messages]:
    p, often = table.trained_dtype.num_bytes, recipe.grad_accum
    if num_ranks > 1:
        yield from _gathers(recipe, num_ranks, trace)
        limit = recipe.zero.stage3_param_persistence_threshold
        small = [(parameter, count) for parameter, count in table.kinds if parameter.numel <= limit]
        sizes = [count * _padded(parameter.numel, num_ranks) * parameter.dtype.num_bytes for parameter, count in small]
        yield Messages(Collective.ALL_GATHER, When.STEP, sum([count for _, count in small]), sum(sizes))
    buckets = _buckets(table, trace, recipe.zero.reduce_bucket_size, is_late=False)
    scattered = _padded_total(buckets.sizes, num_ranks) * p
    yield Messages(Collective.REDUCE_SCATTER, When.BACKWARD, often * buckets.count, often * scattered)


def _gathers(recipe: Recipe, num_ranks: int, trace: Trace) -> Iterable[Messages]:
    """Weights made whole in forward and in backward.

    With hpZ all ranks are asked for trained weights in the first forward of a step alone, for frozen ones in the very
    first of the run; after that the group that has a copy is, in messages apart where both are wanted.
    """
    often, hpz = recipe.grad_accum, recipe.hpz
    walk = gather_walk(trace, recipe.zero, num_wrappers=num_wrappers(recipe))
    for when, sent in ((When.FORWARD, walk.forward.sent), (When.BACKWARD, walk.backward.sent)):
        trained, frozen = _padded_total(sent.trained, num_ranks), _padded_total(sent.frozen, num_ranks)
        if hpz == 1:
            yield Messages(Collective.ALL_GATHER, when, often * sent.num_gathers, often * (trained + frozen))
            continue
        inside = often - 1 if when is When.FORWARD else often
        yield Messages(Collective.ALL_GATHER, when, inside * sent.num_gathers, inside * (trained + frozen), hpz)
        if when is When.FORWARD:
            yield Messages(Collective.ALL_GATHER, when, sent.num_with_trained, trained)
            yield Messages(Collective.ALL_GATHER, when, sent.num_with_frozen, frozen, hpz)


def _padded_total(sizes: Mapping[int, int], num_ranks: int) -> int:
    """The sum of ``sizes`` (how many of each size), each padded so that it can be cut into equal shards."""
    return sum([count * _padded(size, num_ranks) for size, count in sizes.items()])


def _arrivals(trace: Trace) -> Sequence[tuple[Parameter, int | None]]:
    """The trained parameters with their layers as their gradients arrive. One that no output depends on has none."""
    if _arrivals not in trace.memo:
        trained = {
            key: [event.parameter for event in section.backward if isinstance(event, GradientReady | GradientTaken)]
            for key, section in trace.sections.items()
        }
        trace.memo[_arrivals] = [(one, run.layer) for run, _ in trace.backward() for one in trained[run.key]]
    return trace.memo[_arrivals]


def _reductions(table: ParameterTable, recipe: Recipe, num_ranks: int, trace: Trace) -> tuple[int, int]:
    """(all-reduces, elements) of the gradients of one backward under stages 1 and 2.

    A gradient that is larger than the bucket is cut where its owners change (``average_tensor``), and its pieces are
    sent once they exceed the bucket (``allreduce_no_retain``).
    """
    limit = recipe.zero.reduce_bucket_size
    is_late = recipe.zero_stage == 1 and not recipe.zero.overlap_comm
    buckets = _buckets(table, trace, limit, is_late=is_late)
    count, size = buckets.count, partition_size(table.num_trained, num_ranks)
    for ordinal in buckets.large:
        end = table.ends[ordinal]
        start = end - table.numels[ordinal]
        cuts = [start, *range((start // size + 1) * size, end, size), end]
        count += len(chunk_elements([after - before for before, after in pairwise(cuts)], limit)) - 1
    return count, buckets.num_elements


@dataclass(frozen=True, slots=True)
class _Buckets:
    """Gradients of one backward: how many of how many elements, the buckets that they fill, and by ordinal those
    larger than a bucket."""

    sizes: Counter[int]
    count: int
    large: tuple[int, ...]
    num_elements: int


def _buckets(table: ParameterTable, trace: Trace, limit: int, *, is_late: bool) -> _Buckets:
    """``is_late``: gradients are reduced after backward, in the order of the parameters."""
    key = (_buckets, id(table), limit, is_late)
    if key not in trace.memo:
        arrivals = _arrivals(trace)
        if is_late:
            arrivals = sorted(arrivals, key=lambda arrival: table.ordinal(*arrival))
        numels = [parameter.numel for parameter, _ in arrivals]
        buckets = waiting = 0
        for numel in numels:
            if waiting and waiting + numel > limit:
                buckets += 1
                waiting = 0
            waiting += numel
        large = tuple(table.ordinal(parameter, layer) for parameter, layer in arrivals if parameter.numel > limit)
        trace.memo[key] = _Buckets(Counter(numels), buckets + (waiting > 0), large, sum(numels))
    return trace.memo[key]


def _padded(numel: int, num_ranks: int) -> int:
    return -(-numel // num_ranks) * num_ranks


class KindTotal(NamedTuple):
    """Number and bytes of the messages of one kind."""

    num_messages: int
    num_bytes: int


def by_kind(messages: Iterable[Messages]) -> dict[str, KindTotal]:
    """The totals of a step by the kind's name."""
    totals: dict[str, KindTotal] = {}
    for one in messages:
        so_far = totals.get(one.kind.value, KindTotal(0, 0))
        totals[one.kind.value] = KindTotal(so_far.num_messages + one.count, so_far.num_bytes + one.num_bytes)
    return totals


def messages_json(messages: Iterable[Messages]) -> dict[str, Any]:
    """As ``rehearse --json`` shows them."""
    totals = by_kind(messages)
    return {
        "per_step": sum(total.num_bytes for total in totals.values()),
        "by_kind": {kind: {"count": total.num_messages, "bytes": total.num_bytes} for kind, total in totals.items()},
    }
