"""The bytes of gathered weights at every event of a micro batch, from a walk that was made once for many ranks."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vlmplan.engines.coordinator.walk_bytes import GatherWalk, PhaseGathers


class PhaseReplay(NamedTuple):
    """Forward or backward. ``hosts``: how many ranks bring a part of every gather from their host, 0 if none does."""

    phase: PhaseGathers
    hosts: int

    def runs(self) -> Iterator[list[tuple[int, int]]]:
        """The bytes after every event about weights and the most during it, run by run of the sections as they follow
        each other."""
        hosts = self.hosts
        for start, _, _, changes in self.phase.live:
            if hosts:
                yield [
                    (start + after, start + (_with_shards(most, gathers, hosts) if gathers else most))
                    for after, most, gathers in changes
                ]
            else:
                yield [(start + after, start + most) for after, most, _ in changes]

    @property
    def start(self) -> tuple[int, int]:
        """Bytes after the event that comes before the first run, and the most during it."""
        after, most, gathers = self.phase.start
        return after, _with_shards(most, gathers, self.hosts) if self.hosts and gathers else most

    @property
    def left_bytes(self) -> int:
        """Bytes that are gathered when the phase is over."""
        return self.phase.left


def _with_shards(most: int, gathers: Sequence[tuple[int, int]], hosts: int) -> int:
    """The most during an event whose gathers bring a part of their buffer from the host."""
    return max([most, *(live + buffer // hosts for live, buffer in gathers)])


class GatherReplay(NamedTuple):
    """``walk`` as it is on a rank, see ``PhaseReplay``."""

    walk: GatherWalk
    hosts: int = 0
    has_small: bool = False
    """Small weights are among those that come and go, and not whole beside them."""

    @property
    def forward(self) -> PhaseReplay:
        return PhaseReplay(self.walk.forward, self.hosts)

    @property
    def backward(self) -> PhaseReplay:
        return PhaseReplay(self.walk.backward, self.hosts)

    @property
    def never_freed_bytes(self) -> int:
        """Bytes of whole weights that are still there when the optimizer's step has begun."""
        return self.walk.never_freed
