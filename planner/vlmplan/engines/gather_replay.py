"""The bytes of gathered weights at every event of a micro batch, from a walk that was made once for many ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

from vlmplan.engines.gather_walk import GatherWalk, PhaseGathers


@dataclass(frozen=True, slots=True)
class PhaseReplay:
    """Forward or backward. ``hosts``: how many ranks bring a part of every gather from their host, 0 if none does."""

    phase: PhaseGathers
    hosts: int

    def runs(self) -> Iterator[list[tuple[int, int]]]:
        """Of each run of a section, as they follow each other: for every event about weights the bytes after it and
        the most during it."""
        for run in self.phase.live:
            start = run.start
            if self.hosts:
                yield [
                    (start + after, start + max([most, *(live + buffer // self.hosts for live, buffer in gathers)]))
                    for after, most, gathers in run.changes
                ]
            else:
                yield [(start + after, start + most) for after, most, _ in run.changes]

    @property
    def left_bytes(self) -> int:
        """When the phase is over."""
        return self.phase.left


@dataclass(frozen=True, slots=True)
class GatherReplay:
    """``walk`` as it is on a rank, see ``PhaseReplay``."""

    walk: GatherWalk
    hosts: int = 0

    @property
    def forward(self) -> PhaseReplay:
        return PhaseReplay(self.walk.forward, self.hosts)

    @property
    def backward(self) -> PhaseReplay:
        return PhaseReplay(self.walk.backward, self.hosts)

    @property
    def never_freed_bytes(self) -> int:
        """Those that are there when the optimizer's step has begun."""
        return self.walk.never_freed
