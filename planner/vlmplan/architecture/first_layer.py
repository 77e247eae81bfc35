"""One traced layer, reused for all equal layers of its stack.

Equal layers run the same operations on the same shapes, so only the first is run. The events of a later layer differ
in two ways: tensors that all layers share (rotary positions, masks) are freed by the last layer that holds them, in
backward by the first; and a later layer's input is freed when the layer releases it, while callers may hold the first
layer's. Both places are noted while the first layer runs, so that the events of a later one follow from its own.
"""

from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from vlmplan.architecture.trace import NO_PARTS, NO_SPAN, Event, Kind, Section, Span


class UnequalLayersError(Exception):
    """A layer that was reused for others is not equal to them: the model has to be run again (``Tape.again``)."""


@dataclass(slots=True)
class FirstLayer:
    """Notes on the events of one section, in forward and in backward.

    ``own`` are the places of spans that later layers do not have; ``releases`` are the places before which it frees its
    input. ``later`` is the section of the later layers, None while there is none.
    """

    start: int
    """What is older than this is not the layer's own."""
    own: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    releases: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    later: str | None = None
    freed: Span = NO_SPAN
    """What a later layer frees with its input."""

    def reuse_for(self, later: str, num_bytes: int, kind: Kind) -> None:
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
            ends_in_adapter=section.ends_in_adapter,
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


class LayerReuse:
    """The layers of a stack that have the same events as an earlier one, whose trace is reused for them.

    Two layers are equal if they are of the same kind, follow layers of the same kind, both or neither of their inputs
    need a gradient, and both or neither of their inputs, and of their results, are used by something else too. Never
    reused are the first layer of a kind, which in backward frees what all share; the first whose result something else
    uses too, which in backward frees the gradient that such results may share; and of ``sharing`` kinds, whose layers
    sum up the gradient of a shared tensor, the last two, of which in backward one begins the sum and the other adds to
    it for the first time. ``keeps_last``: nor is the last layer, whose result something else gets by its place.
    """

    def __init__(
        self,
        pattern: Sequence[int],
        indices: Sequence[int],
        used_apart: Container[int],
        *,
        sharing: Iterable[int],
        keeps_last: bool,
    ) -> None:
        self.indices = indices
        self._pattern, self._used_apart = pattern, used_apart
        self._after = dict(pairwise(indices))
        self._before = {later: index for index, later in self._after.items()}
        self._unshared = set(indices[-1:]) if keeps_last else set[int]()
        for kind in sharing:
            self._unshared |= set([at for at in indices if pattern[at] == kind][-2:])
        self._begun: set[tuple[tuple[int, bool], bool]] = set()
        self._known: dict[Hashable, int] = {}
        self._last_run: tuple[int, bool] | None = None

    def equal_layer(self, index: int, *, needs_grad: bool) -> int | None:
        """The earlier layer whose trace is reused for ``index``; None if it has to be run.

        A layer is also run where the next one has to be, which gets its result, unless the last that was run is of its
        kind and use. ``needs_grad``: whether the layer's input needs a gradient.
        """
        known, kind = self._known_equal(index, needs_grad), self._kind(index)
        if known is not None:
            after = self._after.get(index)
            follows_one = after is not None and self._known_equal(after, needs_grad) is None
            if not follows_one or kind == self._last_run:
                return known
        elif (kind, needs_grad) in self._begun and index not in self._unshared:
            self._known[self._neighbourhood(index, needs_grad)] = index
        self._begun.add((kind, needs_grad))
        self._last_run = kind
        return None

    def has_run(self, index: int, *, needs_grad: bool) -> None:
        """``needs_grad``: whether the result of the layer does, so that backward runs it after all later ones."""
        self._begun.add((self._kind(index), needs_grad))

    def _known_equal(self, index: int, needs_grad: bool) -> int | None:
        return None if index in self._unshared else self._known.get(self._neighbourhood(index, needs_grad))

    def _kind(self, index: int) -> tuple[int, bool]:
        """The kind of a layer, and whether something else uses its result too."""
        return self._pattern[index], index in self._used_apart

    def _neighbourhood(self, index: int, needs_grad: bool) -> Any:
        before = self._before.get(index)
        return self._kind(index), None if before is None else self._kind(before), needs_grad
