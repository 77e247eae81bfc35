"""The phases of a run on one GPU."""

from dataclasses import dataclass
from typing import Any

from vlmplan.engines.components import Components

REFERENCE_PHASE = "reference"
"""The forward of the reference: in DPO between forward and backward, in GRPO before forward."""
SYNC_PHASE, GENERATE_PHASE = "sync", "generate"
"""Of GRPO: weights are sent to vLLM, and answers are generated."""
ROLLOUT_PHASES = (SYNC_PHASE, GENERATE_PHASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of the run on the fullest GPU: what is live when it ends, and at its highest point."""

    name: str
    resident: Components
    peak: Components

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "resident_bytes": self.resident.total, "peak_bytes": self.peak.total}
