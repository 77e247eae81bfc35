"""The meter of a script, whose steps differ: what its storages were is known of any step, whichever is the highest.

A plan's steps are alike, so that one of them tells when to look in the next (``rehearse.meter``). A script's batches
are those of its data. So every large storage is remembered with who asked for it, and what model and optimizer hold by
name is looked up at the end of each phase.
"""

from typing import Any

from vlmplan.phase_names import GENERATE
from vlmplan_trainer.rehearse.meter import OUTSIDE_STEPS, PhaseMeter
from vlmplan_trainer.rehearse.offline_peaks import component_of

INFERENCE = "inference"


class ScriptMeter(PhaseMeter):
    """Every step is looked at."""

    outside_steps = (*OUTSIDE_STEPS, GENERATE, INFERENCE)

    def _watch(self, key: tuple[str, int]) -> None:
        """Foresee nothing."""

    def _note(self, key: tuple[str, int], *, seconds: float, flops: int) -> None:
        super()._note(key, seconds=seconds, flops=flops)
        if self.owners is not None:
            self._known |= self.owners.held()

    def _component(self, number: int, phase: str) -> str:
        """The component by name; else by what allocated it and when; a small storage that is gone by the phase of the
        peak."""
        entry = self._entry(number)
        if number in self._known or self.owners is None or entry is None:
            return component_of(number, phase, self._known)
        return self.owners.guess(entry)

    def _entry(self, number: int) -> Any:
        entry = self._ledger.made.get(number)
        return entry if number in self._ledger.entries or (entry is not None and entry.shape) else None

    def _summary(self, live: dict[int, int], phase: str) -> dict[str, Any]:
        for number in self._largest(live):
            entry = self._entry(number)
            if entry is not None and entry.shape:
                self._lines[number] = self._line(entry, self._component(number, phase))
        return super()._summary(live, phase)
