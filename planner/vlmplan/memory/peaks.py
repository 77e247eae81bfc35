"""The highest moment of each phase: the engine's tensors from its events, the micro batch's from the trace."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT
from vlmplan.architecture.reference import reference_start
from vlmplan.architecture.trace import (
    NO_PARTS,
    Event,
    GradientReady,
    KeptCast,
    Kind,
    LastAdapter,
    Parts,
    Run,
    Span,
    Trace,
    add_parts,
    change,
)
from vlmplan.engines.components import Components
from vlmplan.engines.engine import Engine
from vlmplan.engines.events import Component, Marked, Sink, Stream

if TYPE_CHECKING:
    from vlmplan.engines.coordinator.replay import GatherReplay, PhaseReplay


class Stretch(NamedTuple):
    """A stretch of a phase from a mark to the next, or to the end: bytes that are live when it begins, and at most."""

    marked: Marked
    start_bytes: int
    most_bytes: int


class PeakTracker(Sink):
    """Live bytes by component, and the moment with most of them since ``start_phase``."""

    def __init__(self) -> None:
        self._held = [0] * len(Component)
        self._held_bytes = self._gathered_bytes = 0
        self._tensors: dict[Hashable, tuple[Component, int]] = {}
        self._batch: Parts = NO_PARTS
        self._batch_bytes = 0
        self._peak_bytes = 0
        self._at_peak: tuple[Sequence[int], Parts] = ((0,) * len(Component), NO_PARTS)
        self._stretches: list[tuple[Stretch, tuple[Sequence[int], Parts]]] = []
        """Those of the phase that have ended, with their highest moments."""
        self._marked: Marked = None
        self._start_bytes = 0
        self._is_at_peak = False
        """The present is the highest moment, and ``_at_peak`` is to be noted before anything changes but upwards."""

    def start_phase(self) -> None:
        self._stretches.clear()
        self._start_stretch(None)

    def mark(self, marked: Marked) -> None:
        self._stretches.append(self._stretch())
        self._start_stretch(marked)

    def _start_stretch(self, marked: Marked) -> None:
        self._marked, self._start_bytes = marked, self._held_bytes + self._batch_bytes
        self._note(self._batch, self._start_bytes)

    def _stretch(self) -> tuple[Stretch, tuple[Sequence[int], Parts]]:
        self._leave_peak()
        return Stretch(self._marked, self._start_bytes, self._peak_bytes), self._at_peak

    @property
    def stretches(self) -> list[Stretch]:
        """The stretches of the phase so far: one, where nothing has been marked."""
        return [stretch for stretch, _ in (*self._stretches, self._stretch())]

    @property
    def peak(self) -> Components:
        _, at_peak = max((*self._stretches, self._stretch()), key=lambda one: one[0].most_bytes)
        return _components(*at_peak)

    def now(self) -> Components:
        return _components(self._held, self._batch)

    # -- the engine's tensors ------------------------------------------------------------------------------------

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        if num_bytes:
            assert owner not in self._tensors, owner
            self._tensors[owner] = component, num_bytes
            self._held[component] += num_bytes  # as ``keep``, whose call would cost as much again
            self._held_bytes += num_bytes
            total = self._held_bytes + self._batch_bytes
            if total > self._peak_bytes:
                self._peak_bytes, self._is_at_peak = total, True

    def keep(self, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        self._held[component] += num_bytes
        self._held_bytes += num_bytes
        total = self._held_bytes + self._batch_bytes
        if total > self._peak_bytes:
            self._peak_bytes, self._is_at_peak = total, True

    def free(self, owner: Hashable) -> None:
        tensor = self._tensors.pop(owner, None)
        if tensor is not None:
            if self._is_at_peak:
                self._note(self._batch, self._peak_bytes)
            component, num_bytes = tensor
            self._held[component] -= num_bytes
            self._held_bytes -= num_bytes

    def clone(self, owner: Hashable, num_bytes: int) -> None:
        if owner in self._tensors:
            component, _ = self._tensors[owner]
            self.transient(component, [num_bytes])

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        num_bytes = sum(sizes)
        total = self._held_bytes + self._batch_bytes + num_bytes
        if total > self._peak_bytes:
            self._held[component] += num_bytes
            self._note(self._batch, total)
            self._held[component] -= num_bytes

    def rename(self, owner: Hashable, new_owner: Hashable) -> None:
        if owner in self._tensors:
            self._tensors[new_owner] = self._tensors.pop(owner)

    def gather(self, num_bytes: int, most_bytes: int) -> None:
        """Gathered weights take ``num_bytes`` from now on, and took up to ``most_bytes`` just before."""
        held, before = self._held, self._gathered_bytes
        if num_bytes == most_bytes == before:
            return
        self._leave_peak()
        total = self._held_bytes + self._batch_bytes + most_bytes - before
        if total > self._peak_bytes:
            held[Component.WEIGHTS] += most_bytes - before
            self._note(self._batch, total)
            held[Component.WEIGHTS] += before - most_bytes
        held[Component.WEIGHTS] += num_bytes - before
        self._held_bytes += num_bytes - before
        self._gathered_bytes = num_bytes

    # -- the micro batch's tensors -------------------------------------------------------------------------------

    def span(self, span: Span) -> None:
        if self._is_at_peak:
            self._note(self._batch, self._peak_bytes)
        peak, delta = span
        total = self._held_bytes + self._batch_bytes + sum(peak)
        if total > self._peak_bytes:
            self._note(add_parts(self._batch, peak), total)
        self._batch = add_parts(self._batch, delta)
        self._batch_bytes += sum(delta)

    def hand_over(self, event: GradientReady, ordinal: int) -> None:
        """A gradient becomes the engine's, or is added to the one that is there and freed."""
        self._leave_peak()
        parts = list(self._batch)
        parts[event.kind] -= event.num_bytes
        self._batch = cast(Parts, tuple(parts))
        self._batch_bytes -= event.num_bytes
        if ordinal not in self._tensors:
            self.allocate(ordinal, Component.GRADIENTS, event.num_bytes)

    def release_batch(self, *, kept_bytes: int = 0) -> None:
        """The training loop releases a micro batch, pixels and masks too, after its backward, but for activations of
        ``kept_bytes``."""
        self._leave_peak()
        self._batch_bytes -= self._batch[0] - kept_bytes
        self._batch = (kept_bytes, *self._batch[1:])

    def forget_batch(self) -> None:
        """What a micro batch has left is gone: another begins."""
        self._leave_peak()
        self._batch, self._batch_bytes = NO_PARTS, 0

    def _note(self, batch: Parts, total: int) -> None:
        self._at_peak, self._peak_bytes, self._is_at_peak = (tuple(self._held), batch), total, False

    def _leave_peak(self) -> None:
        if self._is_at_peak:
            self._note(self._batch, self._peak_bytes)


def _components(held: Sequence[int], batch: Parts) -> Components:
    weights, gradients, states, activations, logits, buffers, temporaries = held
    return Components(
        weights=weights,
        gradients=gradients + batch[3],
        optimizer_states=states,
        activations=activations + batch[0],
        logits=logits + batch[1],
        communication_buffers=buffers,
        temporaries=temporaries + batch[2],
    )


class MicroBatchReplay:
    """Runs the events of a trace under an engine whose sink is a ``PeakTracker``."""

    def __init__(
        self, engine: Engine, tracker: PeakTracker, trace: Trace, gathers: "GatherReplay | None" = None
    ) -> None:
        """``gathers``: what ZeRO-3 gathers, where that is not as in any later step."""
        self._engine, self._tracker, self._trace = engine, tracker, trace
        self._gathers = gathers or engine.gather_replay(trace)
        self._num_casts = 0

    def forward(self, at_reference: Callable[[], None]) -> None:
        """``at_reference`` is called where the forward of a reference begins."""
        self._engine.begin_forward(self._trace)
        if self._gathers is not None and self._gathers.has_small:
            self._engine.release_small()
        gathers = None if self._gathers is None else self._gathers.forward
        if gathers is not None and any(gathers.start):
            self._tracker.gather(*gathers.start)
        self._run_phase(0, self._trace.schedule, gathers, at_reference)
        self._engine.end_forward()

    def free_casts(self) -> None:
        """Forward leaves autocast."""
        for number in range(self._num_casts):
            self._tracker.free(("cast", number))
        self._num_casts = 0

    def backward(self) -> None:
        gathers = None if self._gathers is None else self._gathers.backward
        self._engine.begin_backward()
        if gathers is not None:
            self._tracker.gather(*gathers.start)
        self._run_phase(1, self._trace.schedule[::-1], gathers)
        self._engine.end_backward()
        if gathers is not None:
            self._tracker.gather(gathers.left_bytes, gathers.left_bytes)

    def release_outputs(self) -> None:
        """What backward leaves: the model's outputs."""
        for event in self._trace.after:
            if isinstance(event, Span):
                self._tracker.span(event)

    def begin_step(self) -> None:
        """The optimizer takes over from the micro batch."""
        kept_bytes = self._trace.kept_bytes
        if self._engine.recipe.steps_within_backward:
            kept_bytes -= change(self._trace.after)[Kind.ACTIVATION]
        self._tracker.release_batch(kept_bytes=kept_bytes)
        if self._gathers is not None:
            self._tracker.gather(self._gathers.never_freed_bytes, self._gathers.never_freed_bytes)

    def end_step(self) -> None:
        """The graph of a loss that was named while the optimizer stepped is gone."""
        self._tracker.release_batch(kept_bytes=self._trace.kept_bytes)

    def _run_phase(
        self,
        phase: int,
        schedule: Sequence[Run],
        gathers: "PhaseReplay | None",
        at_reference: Callable[[], None] | None = None,
    ) -> None:
        at = None if at_reference is None else reference_start(schedule)
        if gathers is None:
            merged, follows = self._trace.merged_sections(), self._engine.follows_layers
            for place, run in enumerate(schedule):
                if at_reference is not None and place == at:
                    at_reference()
                if follows:
                    self._engine.enter(run, is_backward=bool(phase))
                self._run(merged[run.key][phase], run, ())
                if follows:
                    self._engine.leave(run, is_backward=bool(phase))
                if run.key == AUTOCAST_LEFT:
                    self.free_casts()
            return
        for place, (run, weights) in enumerate(zip(schedule, gathers.runs(), strict=True)):
            if at_reference is not None and place == at:
                at_reference()
            section = self._trace.sections[run.key]
            self._run(section.backward if phase else section.forward, run, weights)

    def _run(self, events: Iterable[Event], run: Run, weights: Iterable[tuple[int, int]]) -> None:
        """``weights``: what ``PhaseReplay.runs`` says of the events about them."""
        engine, tracker, gathered = self._engine, self._tracker, iter(weights)
        for event in events:
            if isinstance(event, Span):
                tracker.span(event)
            elif isinstance(event, GradientReady):
                ordinal = engine.table.ordinal(event.parameter, run.layer)
                engine.expect_gradient()
                tracker.hand_over(event, ordinal)
                engine.take_part(ordinal, event.part)
            elif isinstance(event, KeptCast):
                tracker.allocate(("cast", self._num_casts), Component.TEMPORARIES, event.num_bytes)
                self._num_casts += 1
            elif isinstance(event, LastAdapter):
                engine.begin_last_adapter(run)
            else:
                tracker.gather(*next(gathered))
