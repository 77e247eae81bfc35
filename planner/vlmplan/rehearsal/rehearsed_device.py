"""The device of a rehearsal: its peaks, the allocator's reserve, and what no rehearsal shows.

A rehearsal sees tensors; library workspaces are added here, as an estimate has them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from vlmplan.engines.components import Components
from vlmplan.hardware import Cluster
from vlmplan.memory.device import DeviceMemory, Verdict, device_memory, reserved_with_room
from vlmplan.memory.overhead import ProcessGroup, workspace_bytes, workspace_sizes
from vlmplan.phase_names import INIT, LOAD
from vlmplan.rehearsal.reserved import Replayed, replayed, workspace_place
from vlmplan.rehearsal.result import Allocation, Rehearsed, RehearsedPhase
from vlmplan.timing import CountedCollectives, TimedStep, timed_work

BEFORE_PRODUCTS = (LOAD, INIT)
"""Phases without library workspaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrehearsedBytes:
    """Something that no rehearsal shows. ``num_bytes`` is what is added for it; None: not known, and not added."""

    what: str
    num_bytes: int | None


class RehearsedDevice(ABC):
    """``rehearsed`` is as the trainer told it, without workspaces, of one GPU of ``cluster``."""

    rehearsed: Rehearsed

    @property
    @abstractmethod
    def cluster(self) -> Cluster: ...

    @property
    @abstractmethod
    def has_expandable_segments(self) -> bool: ...

    @property
    @abstractmethod
    def uses_deepspeed(self) -> bool: ...

    @property
    @abstractmethod
    def process_group(self) -> ProcessGroup: ...

    @property
    def is_on_cpu(self) -> bool:
        return self.cluster.node.gpu.is_cpu

    @cached_property
    def peak(self) -> RehearsedPhase:
        """The phase with the highest moment, of all steps; the last one where several are equal."""
        return self.whole(max(self.rehearsed.phases, key=lambda phase: (self.whole(phase).peak_bytes, phase.step)))

    @property
    def peak_allocated_bytes(self) -> int:
        return self.peak.peak_bytes

    @property
    def largest(self) -> tuple[Allocation, ...]:
        """The largest storages at the peak."""
        return self.peak.largest

    @cached_property
    def device(self) -> DeviceMemory:
        """The device with what the rehearsal allocated, and the allocator's reserve as its trace gives it, or that it
        cannot do without."""
        replay = None if self.is_on_cpu or self.has_expandable_segments else self._reserves
        return device_memory(self.peak_allocated_bytes, self.cluster, self.process_group, replay)

    @cached_property
    def reserved_with_room_bytes(self) -> int:
        """The highest of ``torch.cuda.memory_reserved()`` on a GPU with room, as an estimate has it."""
        device = self.device
        is_other = self.has_expandable_segments and not self.is_on_cpu
        return reserved_with_room(device, self._reserves) if is_other else device.reserved_bytes

    def _reserves(self, capacity_bytes: int | None) -> int:
        return self._replay(capacity_bytes).peak_reserved_bytes

    @property
    def verdict(self) -> Verdict:
        return self.device.verdict

    @cached_property
    def replay(self) -> Replayed | None:
        """The allocator through the whole rehearsal on a card without end; None on a CPU, where none caches."""
        return None if self.is_on_cpu else self._replay(None)

    @cached_property
    def live_bytes(self) -> list[int]:
        """Allocated bytes after every event, workspaces included."""
        first, workspaces = workspace_place(self.rehearsed), self.workspace_bytes
        live, totals = 0, list[int]()
        for index, (_, num_bytes) in enumerate(self.rehearsed.events):
            live += num_bytes + (workspaces if index == first else 0)
            totals.append(live)
        return totals

    @property
    def workspace_bytes(self) -> int:
        """Bytes of libraries' workspaces, which the first matrix product makes."""
        return workspace_bytes(self.cluster.node.gpu)

    @cached_property
    def timed(self) -> TimedStep | None:
        """A step by what its operations make the GPU do; None where a speed is not known."""
        collectives = [
            CountedCollectives(one.phase, one.kind, one.count, one.num_bytes, one.group_size, one.ranks_apart)
            for one in self.rehearsed.step_collectives
        ]
        return timed_work(self.rehearsed.works, collectives, self.cluster, num_steps=self.rehearsed.num_steps)

    def _replay(self, capacity_bytes: int | None) -> Replayed:
        return replayed(
            self.rehearsed,
            workspaces=workspace_sizes(self.cluster.node.gpu),
            has_expandable_segments=self.has_expandable_segments,
            capacity_bytes=capacity_bytes,
        )

    def whole(self, phase: RehearsedPhase) -> RehearsedPhase:
        """The phase with library workspaces, as temporaries."""
        extra = 0 if phase.name in BEFORE_PRODUCTS else self.workspace_bytes
        return replace(
            phase,
            resident_bytes=phase.resident_bytes + extra,
            peak_bytes=phase.peak_bytes + extra,
            components=phase.components + Components(temporaries=extra),
        )

    def first_step(self, phase: RehearsedPhase) -> RehearsedPhase | None:
        first = self.rehearsed.first(phase.name)
        return None if first is None else self.whole(first)

    def reserved_bytes_in(self, phase: RehearsedPhase) -> int | None:
        """The most that was reserved in any of the phase's stretches of that step."""
        if self.replay is None:
            return None
        marks = [mark for mark in self.rehearsed.marks if (mark.name, mark.step) == (phase.name, phase.step)]
        return max((self.replay.peak_reserved_within(mark.begin, mark.end) for mark in marks), default=0)

    @property
    def not_rehearsed(self) -> list[UnrehearsedBytes]:
        """What the device holds besides, with the bytes that were added for it."""
        return list(self._not_rehearsed())

    def _not_rehearsed(self) -> Iterator[UnrehearsedBytes]:
        if self.is_on_cpu:
            yield UnrehearsedBytes(what="Python and libraries", num_bytes=self.device.process_bytes)
            return
        yield UnrehearsedBytes(what="cuBLAS workspaces", num_bytes=self.workspace_bytes)
        yield UnrehearsedBytes(
            what="CUDA context, loaded kernels and library handles", num_bytes=self.device.context_bytes
        )
        if self.device.nccl_bytes:
            yield UnrehearsedBytes(what="NCCL's buffers", num_bytes=self.device.nccl_bytes)
        yield UnrehearsedBytes(what="workspaces of kernels other than attention's", num_bytes=None)
        if self.uses_deepspeed:
            yield UnrehearsedBytes(
                what="memory that waits, once freed, until DeepSpeed's other streams are done with it", num_bytes=None
            )
