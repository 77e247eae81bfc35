"""What running a model on a tape leaves behind: relative memory events and work, section by section.

A ``Section`` is a stretch of the model (an embedding, one kind of layer, the head) with the events of its forward
and of its backward. Memory events are relative to what was live when they begin, so the section of one layer can be
replayed for every equal layer: ``Trace.schedule`` says which section runs for which layer, in forward order; the
backward runs the schedule in reverse.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from vlmplan.architecture.parameter import Parameter, WeightUser

FIRST = ".first"
"""The end of the keys of sections in which the first layer of a stack runs, by itself (``Stack.run``)."""


class Kind(IntEnum):
    """The component of the estimate that a storage is charged to."""

    ACTIVATION = 0
    LOGITS = 1
    TEMPORARY = 2
    GRADIENT = 3  # of a weight, until the engine takes it


Parts = tuple[int, int, int, int]
"""Bytes by ``Kind``: activations, logits, temporaries, gradients of weights."""

NO_PARTS: Parts = (0, 0, 0, 0)


class Span(NamedTuple):
    """A stretch without events for the engine: its highest point and its end, relative to its start, in bytes."""

    peak: Parts
    delta: Parts

    @property
    def peak_bytes(self) -> int:
        return sum(self.peak)

    @property
    def delta_bytes(self) -> int:
        return sum(self.delta)

    def then(self, later: "Span") -> "Span":
        """Both as one span: deltas add, peaks take the maximum.

        >>> Span((5, 0, 0, 0), (1, 0, 0, 0)).then(Span((3, 0, 0, 0), (-1, 0, 0, 0)))
        Span(peak=(5, 0, 0, 0), delta=(0, 0, 0, 0))
        """
        shifted = add_parts(self.delta, later.peak)
        return Span(self.peak if sum(self.peak) >= sum(shifted) else shifted, add_parts(self.delta, later.delta))


NO_SPAN = Span(NO_PARTS, NO_PARTS)


class GradientPart(NamedTuple):
    """The part of a weight's gradient that arrives. Tiles of a module each make one (``tiled_mlp``): the first stays
    where gradients are, the others are added to it, and with the last the gradient is whole."""

    is_first: bool = True
    is_last: bool = True


WHOLE = GradientPart()


class GradientReady(NamedTuple):
    """The gradient of ``parameter``, or a part of it, is there and passes to the engine.

    The spans before count its ``num_bytes`` as live, as ``kind``; what becomes of them from here on is the engine's to
    say.
    """

    parameter: Parameter
    num_bytes: int
    kind: int
    part: GradientPart = WHOLE


class Fetch(NamedTuple):
    """``module`` is about to use its own weights (ZeRO-3 gathers them), and ``before`` it so many modules without any
    begin, as in ``Prefetch``."""

    module: WeightUser
    before: int = 0


class Release(NamedTuple):
    """``module`` is done with its own weights (ZeRO-3 may partition them again).

    ``ends_recomputation``: they were frozen and gathered to run a checkpointed layer again, and go whatever comes next.
    """

    module: WeightUser
    ends_recomputation: bool = False


class Prefetch(NamedTuple):
    """Modules without weights of their own are about to run, so many ``times`` (ZeRO-3 prefetches for each)."""

    times: int = 1


class Hold(NamedTuple):
    """Autograd saves a view of ``parameter``: the storage it has now lives until ``Drop`` of the same ``handle``."""

    handle: int
    parameter: Parameter


class Drop(NamedTuple):
    """The view ``handle`` of a weight is gone."""

    handle: int


class KeptCast(NamedTuple):
    """autocast casts a weight of a layer that is run again in backward, and keeps the cast until forward ends; the
    spans do not count it."""

    num_bytes: int


class LastAdapter(NamedTuple):
    """The last factor of an adapter of the section begins (FSDP1 may gather ahead then). Every adapter notes it; all
    but the last are dropped."""


class Allocation(NamedTuple):
    """A storage is made. Only where every storage is followed (``storage_log``), in place of spans."""

    handle: int
    num_bytes: int


class Deallocation(NamedTuple):
    """The storage ``handle`` is freed."""

    handle: int


class Cached(NamedTuple):
    """The storage ``handle`` is kept while text is generated; ``grows``: each token makes it longer. Only where every
    storage is followed."""

    handle: int
    grows: bool


class GradientTaken(NamedTuple):
    """A gradient that arrives as ``GradientReady`` does, where the engine decides when the storage ``handle`` is
    freed."""

    parameter: Parameter
    num_bytes: int
    handle: int
    part: GradientPart = WHOLE


WeightUse = Fetch | Release | Prefetch | Hold | Drop
StorageEvent = Allocation | Deallocation | GradientTaken | Cached
"""Events about a storage, which has a handle."""
Event = Span | GradientReady | KeptCast | LastAdapter | WeightUse | StorageEvent


def add_parts(left: Parts, right: Parts) -> Parts:
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3])


@dataclass(slots=True)
class Work:
    """What is computed in one phase, by a section or by all layers together. Flows add.

    ``matmuls``: how many matrix products in 16 bit there are of each size, (floating point operations, bytes that have
    to be read and written); ``float32_matmuls``: in float32, which tensor cores do not compute.
    """

    matmuls: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    float32_matmuls: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    attention_flops: int = 0  # as torch's FlopCounterMode counts them: without the causal half
    causal_attention_flops: int = 0  # the part of them that a causal kernel may skip half of
    float32_attention_flops: int = 0  # the part in float32, of all
    float32_causal_attention_flops: int = 0  # and of those that are causal
    elementwise_bytes: int = 0  # read and written by everything that is not a matrix multiplication
    num_kernels: int = 0
    exchanges: dict[int, int] = field(default_factory=dict[int, int])
    """All-to-alls among the ranks of a sample: how many of each size in bytes."""
    host_copies: dict[int, int] = field(default_factory=dict[int, int])
    """Tensors that go to host memory or come from there: how many of each size in bytes."""

    def add(self, other: "Work", count: int) -> None:
        """Add the work of ``other``, ``count`` times."""
        for size, often in other.matmuls.items():
            self.matmuls[size] = self.matmuls.get(size, 0) + count * often
        for size, often in other.float32_matmuls.items():
            self.float32_matmuls[size] = self.float32_matmuls.get(size, 0) + count * often
        self.attention_flops += count * other.attention_flops
        self.causal_attention_flops += count * other.causal_attention_flops
        self.float32_attention_flops += count * other.float32_attention_flops
        self.float32_causal_attention_flops += count * other.float32_causal_attention_flops
        self.elementwise_bytes += count * other.elementwise_bytes
        self.num_kernels += count * other.num_kernels
        for num_bytes, often in other.exchanges.items():
            self.exchanges[num_bytes] = self.exchanges.get(num_bytes, 0) + count * often
        for num_bytes, often in other.host_copies.items():
            self.host_copies[num_bytes] = self.host_copies.get(num_bytes, 0) + count * often

    @property
    def host_copy_bytes(self) -> int:
        return sum(num_bytes * count for num_bytes, count in self.host_copies.items())

    @property
    def flops(self) -> int:
        """Floating point operations of matrix products, as torch's ``FlopCounterMode`` counts."""
        products = (*self.matmuls.items(), *self.float32_matmuls.items())
        return sum(flops * count for (flops, _), count in products) + self.attention_flops


INPUTS = "batch"
"""The section that makes a micro batch's inputs."""
HEAD = "head"
"""That of the output head."""


def fetched_modules(events: Iterable[Event]) -> list[Any]:
    """The modules whose use begins, in order."""
    return [event.module for event in events if isinstance(event, Fetch)]


@dataclass(slots=True)
class Section:
    """One stretch of the model, once."""

    forward: list[Event] = field(default_factory=list["Event"])
    backward: list[Event] = field(default_factory=list["Event"])
    forward_work: Work = field(default_factory=Work)
    recompute_work: Work = field(default_factory=Work)
    backward_work: Work = field(default_factory=Work)
    unreleased_bytes: int = 0
    """Weights of modules that backward fetches and does not release."""
    recomputed_bytes: int = 0
    """Frozen weights that stay whole while the section is run again."""
    ends_in_adapter: bool = False
    """Whether it runs again for the last factor of an adapter."""
    memo: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], compare=False)
    """What others have found out about this section once it was recorded, by keys of theirs: several traces may have
    it."""


class Run(NamedTuple):
    """One entry of the schedule: the section ``key``, run for ``layer`` of its stack (None outside stacks)."""

    key: str
    layer: int | None


def change(events: Sequence[Event]) -> Parts:
    """What is live after ``events`` and was not before."""
    total = NO_PARTS
    for event in events:
        if isinstance(event, Span):
            total = add_parts(total, event.delta)
    return total


@dataclass(slots=True)
class Trace:
    """A whole micro batch. ``after`` is what backward leaves to be freed before the step: the model's outputs."""

    sections: dict[str, Section]
    schedule: list[Run]
    after: list[Event] = field(default_factory=list["Event"])
    kept_bytes: int = 0
    """Of activations that the training loop holds until the next micro batch."""
    _merged: dict[str, tuple[list[Event], list[Event]]] | None = None
    _works: tuple[Work, Work, Work] | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """What others have found out about this trace, by keys of theirs."""

    def merged_sections(self) -> dict[str, tuple[list[Event], list[Event]]]:
        """(forward, backward) of each section without weights' comings and goings, neighbouring spans merged."""
        if self._merged is None:
            self._merged = {
                key: (merged(section.forward), merged(section.backward)) for key, section in self.sections.items()
            }
        return self._merged

    def works(self) -> tuple[Work, Work, Work]:
        """Forward, recomputation and backward of all layers together."""
        if self._works is None:
            works = (Work(), Work(), Work())
            for key, count in Counter(run.key for run in self.schedule).items():
                section = self.sections[key]
                for phase, work in zip(
                    works, (section.forward_work, section.recompute_work, section.backward_work), strict=True
                ):
                    phase.add(work, count)
            self._works = works
        return self._works

    @property
    def change(self) -> Parts:
        """What all of it leaves, without gradients that the engine takes."""
        change = _change(self.after)
        for key, count in Counter(run.key for run in self.schedule).items():
            section = self.sections[key]
            once = add_parts(_change(section.forward), _change(section.backward))
            activations, logits, temporaries, gradients = (count * num_bytes for num_bytes in once)
            change = add_parts(change, (activations, logits, temporaries, gradients))
        return change

    def forward(self) -> Iterator[tuple[Run, Section]]:
        for run in self.schedule:
            yield run, self.sections[run.key]

    def backward(self) -> Iterator[tuple[Run, Section]]:
        for run in reversed(self.schedule):
            yield run, self.sections[run.key]


def merged(events: Iterable[Event]) -> list[Event]:
    """``events`` with neighbouring spans merged, and without the comings and goings of weights."""
    events, result = with_last_adapter(events), list[Event]()
    pending: Span | None = None
    for event in events:
        if isinstance(event, Span):
            pending = event if pending is None else pending.then(event)
        elif isinstance(event, GradientReady | KeptCast | LastAdapter):
            if pending is not None:
                result.append(pending)
                pending = None
            result.append(event)
    if pending is not None:
        result.append(pending)
    return result


def with_last_adapter(events: Iterable[Event]) -> list[Event]:
    """``events`` with the last ``LastAdapter`` alone."""
    kept = list(events)
    for place in [place for place, event in enumerate(kept) if isinstance(event, LastAdapter)][-2::-1]:
        del kept[place]
    return kept


def _change(events: Iterable[Event]) -> Parts:
    change = NO_SPAN
    for event in merged(events):
        if isinstance(event, Span):
            change = change.then(event)
        elif isinstance(event, GradientReady):
            taken = [-event.num_bytes if kind == event.kind else 0 for kind in range(len(NO_PARTS))]
            change = change.then(Span(NO_PARTS, (taken[0], taken[1], taken[2], taken[3])))
    return change.delta
