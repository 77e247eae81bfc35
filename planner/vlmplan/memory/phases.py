"""The phases of a run on one GPU."""

from dataclasses import dataclass
from typing import Any

from vlmplan.engines.components import Components
from vlmplan.phase_names import BACKWARD, FORWARD, GENERATE, REFERENCE, SYNC
from vlmplan.recipe import Recipe

ROLLOUT_PHASES = (SYNC, GENERATE)
MICRO_BATCH_PHASES = (FORWARD, REFERENCE, BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of the run on the fullest GPU: what is live when it ends, and at its highest point."""

    name: str
    resident: Components
    peak: Components

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "resident_bytes": self.resident.total, "peak_bytes": self.peak.total}


def num_waiting(recipe: Recipe, phase: str) -> int:
    """Micro batches that are on the GPU beside what the phase itself runs. Answers of GRPO stay until the next are
    there (``_buffered_inputs`` of TRL's ``grpo_trainer.py``), so while those are made both are. VLM-R1's of that
    name holds those of a step, each until the same micro batch of the next step has its own; R1-V's none."""
    task = recipe.task
    if task is None or not task.is_grpo:
        return recipe.num_waiting + (phase not in MICRO_BATCH_PHASES)
    if task.runs_reference_within:
        return 0
    generated = recipe.micro_batches_at_once
    kept = recipe.grad_accum if task.is_of_vlm_r1 else generated
    if phase == REFERENCE:
        return kept + generated - 1
    return kept - (phase in MICRO_BATCH_PHASES)
