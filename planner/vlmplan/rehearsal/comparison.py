"""A rehearsal beside its estimate: per phase and per component what was rehearsed, what was estimated, and the error.

A rehearsal sees tensors. What it cannot see (``not_rehearsed``) is added as the estimate has it, so that both count the
same things.
"""

from dataclasses import dataclass
from functools import cached_property

from vlmplan.engines.components import Components
from vlmplan.estimation import Estimate
from vlmplan.hardware import Cluster
from vlmplan.memory.overhead import ProcessGroup, process_group
from vlmplan.memory.phases import Phase
from vlmplan.rehearsal.rehearsed_device import RehearsedDevice
from vlmplan.rehearsal.result import Rehearsed, RehearsedPhase


def relative_error(estimated: float, rehearsed: float) -> float | None:
    """(estimated - rehearsed) / rehearsed; None where nothing was rehearsed."""
    return estimated / rehearsed - 1 if rehearsed else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPhase:
    """One phase of the last step, or outside of steps, workspaces included.

    ``estimated`` is None for what an estimate has no phase of: rewards of answers, log-probabilities before training.
    ``first_step`` is the same phase of the first step; ``reserved_bytes`` is None where no allocator caches.
    """

    rehearsed: RehearsedPhase
    estimated: Phase | None
    first_step: RehearsedPhase | None
    reserved_bytes: int | None

    @property
    def name(self) -> str:
        return self.rehearsed.name

    @property
    def peak_error(self) -> float | None:
        estimated = self.estimated
        return None if estimated is None else relative_error(estimated.peak.total, self.rehearsed.peak_bytes)


@dataclass(frozen=True)
class Comparison(RehearsedDevice):
    """``rehearsed`` is as the trainer told it, without workspaces."""

    rehearsed: Rehearsed
    estimate: Estimate

    @property
    def cluster(self) -> Cluster:
        return self.estimate.cluster

    @property
    def has_expandable_segments(self) -> bool:
        return self.estimate.recipe.expandable_segments

    @property
    def uses_deepspeed(self) -> bool:
        return self.estimate.recipe.uses_deepspeed

    @property
    def process_group(self) -> ProcessGroup:
        return process_group(self.estimate.recipe, self.estimate.cluster.num_gpus)

    @cached_property
    def phases(self) -> list[ComparedPhase]:
        """The phases in the order of a run, as the estimate has it where it has the phase."""
        estimated = {phase.name: phase for phase in self.estimate.timeline.phases}
        order = list(estimated)
        found = [
            ComparedPhase(
                rehearsed=self.whole(phase),
                estimated=estimated.get(phase.name),
                first_step=self.first_step(phase),
                reserved_bytes=self.reserved_bytes_in(phase),
            )
            for phase in self.rehearsed.last_phases
        ]
        known = iter(sorted((one for one in found if one.estimated is not None), key=lambda one: order.index(one.name)))
        return [one if one.estimated is None else next(known) for one in found]

    @property
    def relative_error(self) -> float | None:
        """Relative error of the estimate's peak of allocated memory."""
        return relative_error(self.estimate.peak_allocated_bytes, self.peak_allocated_bytes)

    @property
    def estimated_peak(self) -> Components:
        """What the estimate says of the phase of the rehearsed peak; of its own where it has no such phase."""
        phases = self.estimate.timeline.phases
        own = max(phases, key=lambda phase: phase.peak.total)
        return next((phase.peak for phase in phases if phase.name == self.peak.name), own.peak)


def compared(rehearsed: Rehearsed, estimate: Estimate) -> Comparison:
    """A rehearsal beside the estimate of the same plan."""
    return Comparison(rehearsed, estimate)
