"""What every rehearsal answers, of a plan, of a task's plan and of a script."""

import time
from typing import Any

from vlmplan_trainer.rehearse.dispatch import Rehearsal
from vlmplan_trainer.rehearse.meter import PhaseMeter

SCHEMA = "vlmplan.rehearsed/1"


def rehearsed_json(
    meter: PhaseMeter,
    mode: Rehearsal,
    *,
    rank: int,
    num_ranks: int,
    num_steps: int,
    start: float,
    checkpoint_bytes: int | None,
) -> dict[str, Any]:
    """The answer as JSON has it; ``start`` is when ``time.perf_counter`` had begun to count its seconds."""
    return {
        "schema": SCHEMA,
        "rank": rank,
        "num_ranks": num_ranks,
        "num_steps": num_steps,
        "seconds": time.perf_counter() - start,
        "num_operations": mode.num_operations,
        "checkpoint_bytes": checkpoint_bytes,
        **meter.as_json(),
    }
