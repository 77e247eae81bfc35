"""The first layer of a stack, which stands for the later ones of its kind too.

Equal layers run the same operations on the same shapes. What they leave differs in two ways: tensors that all layers
share (rotary positions, masks) go with the last layer that holds them, in backward the first; and a later layer's
input goes when the layer lets go of it, while callers may hold the first one's. Both moments are noted as the first
layer runs, so that the events of a later one follow from its own.
"""

from dataclasses import dataclass, field

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
