"""Storages of forwards without gradients within a micro batch, in a replay of the caching allocator: what they leave.

What a repeated layer makes and does not free are weights that autocast has cast: they go where it is left. What is left
otherwise, such as log-probabilities, is small and goes with its forward.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from vlmplan.architecture.losses.log_softmax import AUTOCAST_LEFT
from vlmplan.architecture.reference import ends_alone, start_of_alone
from vlmplan.architecture.trace import Run


class _Alone(NamedTuple):
    """What its sections begin with, the storages that were there before, those of its own that have been seen, and
    those among them that its layers have left."""

    start: str
    before: frozenset[int]
    seen: set[int]
    of_layers: set[int]


class ForwardsAlone:
    """The forwards that are under way, one within another."""

    def __init__(self) -> None:
        self._begun: list[_Alone] = []

    def begins(self, run: Run, storages: Collection[int]) -> bool:
        """Whether another one begins with this run, beside these ``storages``."""
        start = start_of_alone(run)
        begins = start != "" and start not in [one.start for one in self._begun]
        if begins:
            self._begun.append(_Alone(start, frozenset(storages), set(), set()))
        return begins

    def left_by(self, run: Run, storages: Collection[int]) -> Sequence[int]:
        """Those of ``storages`` that go when this run of the innermost one is over."""
        if not self._begun or start_of_alone(run) != self._begun[-1].start:
            return []
        start, before, seen, of_layers = self._begun[-1]
        own = [handle for handle in storages if handle not in before]
        if ends_alone(run):
            self._begun.pop()
            return own
        if run.layer is not None:
            of_layers.update(handle for handle in own if handle not in seen)
        seen.update(own)
        return [handle for handle in own if handle in of_layers] if run.key == start + AUTOCAST_LEFT else []
