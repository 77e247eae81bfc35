"""The first layer of a stack, which stands for the later ones of its kind too.

Equal layers run the same operations on the same shapes. What they leave differs in two ways: tensors that all layers
share (rotary positions, masks) go with the last layer that holds them, in backward the first; and a later layer's
input goes when the layer lets go of it, while callers may hold the first one's. Both moments are noted as the first
layer runs, so that the events of a later one follow from its own.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vlmplan.architecture.trace import NO_PARTS, NO_SPAN, Event, Kind, Section, Span


class UnlikeLayersError(Exception):
    """A layer that was taken to stand for others does not: the model has to be run again (``Tape.again``)."""


@dataclass(slots=True)
class FirstLayer:
    """Notes on the events of one section, in forward and in backward.

    ``own`` are the places of spans that a later layer has not; ``releases`` are the places before which it frees its
    input. ``later`` is the section of the later layers, None while there is none.
    """

    start: int
    """What is older than this is not the layer's own."""
    own: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    releases: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    later: str | None = None
    freed: Span = NO_SPAN
    """What a later layer frees with its input."""

    def stands_for(self, later: str, num_bytes: int, kind: Kind) -> None:
        """Layers of the section ``later`` get as their input ``num_bytes`` that are charged to ``kind``."""
        activations, logits, temporaries, gradients = (-num_bytes if each is kind else 0 for each in Kind)
        self.later, self.freed = later, Span(NO_PARTS, (activations, logits, temporaries, gradients))

    def later_section(self, section: Section) -> Section:
        """The section of a later layer, from that of the first."""
        return Section(
            forward=self._later_events(section.forward, 0),
            backward=self._later_events(section.backward, 1),
            forward_work=section.forward_work,
            recompute_work=section.recompute_work,
            backward_work=section.backward_work,
            unreleased_bytes=section.unreleased_bytes,
            recomputed_bytes=section.recomputed_bytes,
        )

    def _later_events(self, events: list[Event], phase: int) -> list[Event]:
        own, releases = self.own[phase], self.releases[phase]
        later: list[Event] = []
        for place, event in enumerate(events):
            if place in releases:
                later.append(self.freed)
            if place not in own:
                later.append(event)
        if len(events) in releases:
            later.append(self.freed)
        return later


class LikeLayers:
    """Which layers of a stack leave what an earlier one has left.

    That is of the same kind and behind a layer of the same kind, and so is its input's need of a gradient. But the
    first layer of a kind, in backward the last, frees what all share; of the last two, in backward the first, the one
    begins the sum of what all give a gradient to and the other adds to it for the first time. They stand for no other,
    nor does a layer whose result or input something else uses too.
    """

    def __init__(self, pattern: Sequence[int], indices: Sequence[int], used_apart: Container[int]) -> None:
        self.indices = indices
        self._pattern = pattern
        self._after = dict(pairwise(indices))
        self._before = {later: index for index, later in self._after.items()}
        self._alone = {at for at in indices if at in used_apart or self._before.get(at, at) in used_apart}
        for kind in set(pattern):
            self._alone |= set([at for at in indices if pattern[at] == kind][-2:])
        self._begun: set[tuple[int, bool]] = set()
        self._known: dict[Any, int] = {}
        self._last_kind: int | None = None

    def run_before(self, index: int, *, needs_grad: bool) -> int | None:
        """The layer that stands for ``index``, whose input needs a gradient or not; None if it has to be run, as
        layers are, too, that one which has to be run follows, unless the last that was run is of their kind."""
        kind, after = self._pattern[index], self._after.get(index)
        known = self._like(index, needs_grad)
        if known is not None:
            follows_one = after is not None and self._like(after, needs_grad) is None
            if not follows_one or kind == self._last_kind:
                return known
        elif (kind, needs_grad) in self._begun and index not in self._alone:
            self._known[self._situation(index, needs_grad)] = index
        self._begun.add((kind, needs_grad))
        self._last_kind = kind
        return None

    def _like(self, index: int, needs_grad: bool) -> int | None:
        return None if index in self._alone else self._known.get(self._situation(index, needs_grad))

    def _situation(self, index: int, needs_grad: bool) -> Any:
        before = self._before.get(index)
        return self._pattern[index], None if before is None else self._pattern[before], needs_grad
