"""The meter of a script, whose steps differ: what its storages were is known of any step, whichever is the highest.

A plan's steps are alike, so that one of them tells when to look in the next (``rehearse.meter``). A script's batches
are those of its data. So every large storage is remembered with who asked for it, and what model and optimizer hold by
name is looked up at the end of each phase.
"""

from vlmplan.phase_names import GENERATE
from vlmplan_trainer.rehearse.meter import OUTSIDE_STEPS, PhaseMeter

INFERENCE = "inference"


class ScriptMeter(PhaseMeter):
    """Every step is looked at."""

    outside_steps = (*OUTSIDE_STEPS, GENERATE, INFERENCE)

    def _watch(self, key: tuple[str, int]) -> None:
        """Foresee nothing."""
