"""Replays a trace under an engine: the model's tensors from the tape, gradients and gathered weights from the engine.

``Moments`` walks through the events of a phase and keeps the highest moment. What the engine holds besides (weights,
optimizer states) is constant through a micro batch and is added by the timeline.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from vlmplan.architecture.trace import (
    Drop,
    Event,
    Fetch,
    GradientReady,
    Hold,
    Parts,
    Release,
    Run,
    Span,
    Trace,
    add_parts,
)
from vlmplan.memory.blocks import UNWATCHED, Watcher
from vlmplan.memory.buckets import BucketedGradients, ShardedGradients, bucket
from vlmplan.memory.components import NOTHING, Components
from vlmplan.memory.gathering import GatheredWeights
from vlmplan.memory.parameters import ParameterTable


@dataclass(slots=True)
class KeptGradients:
    """Gradients that stay where autograd put them until the step (plain PyTorch, ZeRO 0 and 1)."""

    sizes: list[int]
    """Bytes of each gradient, by ordinal."""
    accumulates: bool = False
    """A gradient from an earlier micro batch is there already, so a new one is added to it and freed."""
    bucket_bytes: int = 0
    """Stage 1 allocates its reduce bucket with the first gradient, although it reduces after backward."""
    gradients: int = 0
    buffers: int = 0
    watcher: Watcher = UNWATCHED

    def begin(self) -> None:
        if self.buffers != self.bucket_bytes:
            self.buffers = self.bucket_bytes
            self.watcher.make(bucket(0), self.bucket_bytes)

    def add(self, ordinal: int) -> int:
        peak = self.gradients + self.buffers
        if self.accumulates:
            self.gradients -= self.sizes[ordinal]
        return peak

    def end(self) -> int:
        return self.gradients + self.buffers


GradientStore = KeptGradients | BucketedGradients | ShardedGradients


class Moments:
    """The running total of a replay and its highest moment."""

    def __init__(self, table: ParameterTable, store: GradientStore, gathered: GatheredWeights | None = None) -> None:
        self._table, self.store, self._gathered = table, store, gathered
        self.parts: Parts = (0, 0, 0, 0)
        self.peak: Components = NOTHING
        self._peak_total = 0

    def forward(self, trace: Trace) -> None:
        merged = trace.merged_sections()
        for run, section in trace.forward():
            self._replay(section.forward if self._gathered is not None else merged[run.key][0], run)

    def backward(self, trace: Trace) -> None:
        merged = trace.merged_sections()
        for run, section in trace.backward():
            self._replay(section.backward if self._gathered is not None else merged[run.key][1], run)
        self._touch(self.parts, engine=self.store.end())
        if self._gathered is not None:
            self._gathered.end_backward()

    def _replay(self, events: Iterable[Event], run: Run) -> None:
        gathered = self._gathered
        for event in events:
            if isinstance(event, Span):
                self._span(event)
            elif isinstance(event, GradientReady):
                self._gradient(event, run.layer)
            elif gathered is not None and isinstance(event, Fetch):
                self._touch(self.parts, weights=gathered.fetch())
            elif gathered is not None and isinstance(event, Release):
                gathered.release(event, run)
            elif gathered is not None and isinstance(event, Hold):
                gathered.hold(event, run)
            elif gathered is not None and isinstance(event, Drop):
                gathered.drop(event, run)

    def end(self, trace: Trace) -> None:
        """Free what backward left: the model's outputs."""
        for event in trace.after:
            if isinstance(event, Span):
                self.parts = add_parts(self.parts, event.delta)

    def start_peak(self) -> None:
        """Look for the highest moment from here on."""
        self.peak = self.now()
        self._peak_total = self.peak.total

    def now(self) -> Components:
        gathered = 0 if self._gathered is None else self._gathered.live_bytes
        return self._components(self.parts, gathered, self.store.gradients + self.store.buffers)

    def _span(self, span: Span) -> None:
        weights = 0 if self._gathered is None else self._gathered.live_bytes
        held = self.store.gradients + self.store.buffers
        if sum(self.parts) + sum(span.peak) + weights + held > self._peak_total:
            self._touch(add_parts(self.parts, span.peak))
        self.parts = add_parts(self.parts, span.delta)

    def _gradient(self, event: GradientReady, layer: int | None) -> None:
        """The gradient moves from the tape to the store."""
        parameter, num_bytes, kind = event
        parts = list(self.parts)
        parts[kind] -= num_bytes
        self.parts = cast(Parts, tuple(parts))
        store = self.store
        store.begin()
        store.gradients += num_bytes
        self._touch(self.parts, engine=store.add(self._table.ordinal(parameter, layer)))

    def _touch(self, parts: Parts, *, weights: int | None = None, engine: int | None = None) -> None:
        """Note a moment; ``weights`` and ``engine`` are higher than now for what happens inside an event."""
        if weights is None:
            weights = 0 if self._gathered is None else self._gathered.live_bytes
        held = self.store.gradients + self.store.buffers
        if engine is None:
            engine = held
        # ``store.end`` and ``store.add`` may leave less than they passed through
        total = parts[0] + parts[1] + parts[2] + parts[3] + weights + engine
        if total > self._peak_total:
            self._peak_total = total
            self.peak = self._components(parts, weights, engine)

    def _components(self, parts: Parts, weights: int, engine: int) -> Components:
        passing = engine - self.store.gradients - self.store.buffers  # copies inside a reduction, a second gradient
        is_kept = isinstance(self.store, KeptGradients)
        return Components(
            weights=weights,
            gradients=parts[3] + self.store.gradients + (passing if is_kept else 0),
            activations=parts[0],
            logits=parts[1],
            communication_buffers=self.store.buffers + (0 if is_kept else passing),
            temporaries=parts[2],
        )
