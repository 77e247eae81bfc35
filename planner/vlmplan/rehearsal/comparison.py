"""A rehearsal beside its estimate: per phase and per component what was rehearsed, what was estimated, and the error.

A rehearsal sees tensors. What it cannot see (``not_rehearsed``) is added as the estimate has it, so that both count the
same things.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from vlmplan.engines.components import Components
from vlmplan.estimation import Estimate
from vlmplan.memory.device import DeviceMemory, Verdict, device_memory
from vlmplan.memory.overhead import workspace_bytes, workspace_sizes
from vlmplan.memory.phases import Phase
from vlmplan.rehearsal.reserved import Replayed, replayed, workspace_place
from vlmplan.rehearsal.result import Allocation, Rehearsed, RehearsedPhase

BEFORE_PRODUCTS = ("load", "init")
"""Phases without library workspaces."""


def relative_error(estimated: float, rehearsed: float) -> float | None:
    """(estimated - rehearsed) / rehearsed; None where nothing was rehearsed."""
    return estimated / rehearsed - 1 if rehearsed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPhase:
    """One phase of the last step, or outside of steps, workspaces included.

    ``first_step`` is the same phase of the first step; ``reserved_bytes`` is None where no allocator caches.
    """

    rehearsed: RehearsedPhase
    estimated: Phase
    first_step: RehearsedPhase | None
    reserved_bytes: int | None

    @property
    def name(self) -> str:
        return self.rehearsed.name

    @property
    def peak_error(self) -> float | None:
        return relative_error(self.estimated.peak.total, self.rehearsed.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrehearsedBytes:
    """Something that no rehearsal shows. ``num_bytes`` is what is added for it; None: not known, and not added."""

    what: str
    num_bytes: int | None


@dataclass(frozen=True)
class Comparison:
    """``rehearsed`` is as the trainer told it, without workspaces."""

    rehearsed: Rehearsed
    estimate: Estimate

    @property
    def is_on_cpu(self) -> bool:
        return self.estimate.cluster.node.gpu.is_cpu

    @cached_property
    def phases(self) -> list[ComparedPhase]:
        """In the order of a run."""
        estimated = {phase.name: phase for phase in self.estimate.timeline.phases}
        return [
            ComparedPhase(
                rehearsed=self._whole(phase),
                estimated=estimated[phase.name],
                first_step=self._first(phase),
                reserved_bytes=self._reserved(phase),
            )
            for phase in self.rehearsed.last_phases
        ]

    @cached_property
    def peak(self) -> RehearsedPhase:
        """The phase with the highest moment, of all steps; the last one where several are equal."""
        return self._whole(max(self.rehearsed.phases, key=lambda phase: (self._whole(phase).peak_bytes, phase.step)))

    @property
    def peak_allocated_bytes(self) -> int:
        return self.peak.peak_bytes

    @property
    def relative_error(self) -> float | None:
        """Of the estimate's peak, allocated."""
        return relative_error(self.estimate.peak_allocated_bytes, self.peak_allocated_bytes)

    @property
    def estimated_peak(self) -> Components:
        """What the estimate says of the phase of the rehearsed peak."""
        return next(phase.peak for phase in self.estimate.timeline.phases if phase.name == self.peak.name)

    @property
    def largest(self) -> tuple[Allocation, ...]:
        """The largest storages at the peak."""
        return self.peak.largest

    @cached_property
    def device(self) -> DeviceMemory:
        """The device with what the rehearsal allocated, and the allocator's reserve as its trace gives it."""
        return device_memory(
            self.peak_allocated_bytes,
            self.estimate.cluster,
            None if self.is_on_cpu else lambda capacity: self._replay(capacity).peak_reserved_bytes,
        )

    @property
    def verdict(self) -> Verdict:
        return self.device.verdict

    @cached_property
    def replay(self) -> Replayed | None:
        """The allocator through the whole rehearsal on a card without end; None on a CPU, where none caches."""
        return None if self.is_on_cpu else self._replay(None)

    @property
    def not_rehearsed(self) -> list[UnrehearsedBytes]:
        """What the device holds besides, with the bytes that were added for it."""
        return list(self._not_rehearsed())

    @cached_property
    def live_bytes(self) -> list[int]:
        """Allocated bytes after every event, workspaces included."""
        first, workspaces = workspace_place(self.rehearsed), self._workspaces
        live, totals = 0, list[int]()
        for index, (_, num_bytes) in enumerate(self.rehearsed.events):
            live += num_bytes + (workspaces if index == first else 0)
            totals.append(live)
        return totals

    @property
    def _workspaces(self) -> int:
        return workspace_bytes(self.estimate.cluster.node.gpu)

    def _replay(self, capacity_bytes: int | None) -> Replayed:
        return replayed(
            self.rehearsed,
            workspaces=workspace_sizes(self.estimate.cluster.node.gpu),
            has_expandable_segments=self.estimate.recipe.expandable_segments,
            capacity_bytes=capacity_bytes,
        )

    def _whole(self, phase: RehearsedPhase) -> RehearsedPhase:
        """The phase with library workspaces, as temporaries."""
        extra = 0 if phase.name in BEFORE_PRODUCTS else self._workspaces
        return replace(
            phase,
            resident_bytes=phase.resident_bytes + extra,
            peak_bytes=phase.peak_bytes + extra,
            components=phase.components + Components(temporaries=extra),
        )

    def _first(self, phase: RehearsedPhase) -> RehearsedPhase | None:
        first = self.rehearsed.first(phase.name)
        return None if first is None else self._whole(first)

    def _reserved(self, phase: RehearsedPhase) -> int | None:
        """The most that was reserved in any of the phase's stretches of that step."""
        if self.replay is None:
            return None
        marks = [mark for mark in self.rehearsed.marks if (mark.name, mark.step) == (phase.name, phase.step)]
        return max((self.replay.peak_reserved_within(mark.begin, mark.end) for mark in marks), default=0)

    def _not_rehearsed(self) -> Iterator[UnrehearsedBytes]:
        if self.is_on_cpu:
            yield UnrehearsedBytes(what="Python and libraries", num_bytes=self.device.process_bytes)
            return
        yield UnrehearsedBytes(what="cuBLAS workspaces", num_bytes=self._workspaces)
        yield UnrehearsedBytes(
            what="CUDA context, loaded kernels and library handles", num_bytes=self.device.context_bytes
        )
        if self.device.nccl_bytes:
            yield UnrehearsedBytes(what="NCCL's buffers", num_bytes=self.device.nccl_bytes)
        yield UnrehearsedBytes(what="workspaces of kernels other than attention's", num_bytes=None)
        if self.estimate.recipe.uses_deepspeed:
            yield UnrehearsedBytes(
                what="memory that waits, once freed, until DeepSpeed's other streams are done with it", num_bytes=None
            )


def compared(rehearsed: Rehearsed, estimate: Estimate) -> Comparison:
    """Both beside each other."""
    return Comparison(rehearsed, estimate)
