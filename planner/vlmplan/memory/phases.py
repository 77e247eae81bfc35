"""The phases of a run on one GPU."""

from dataclasses import dataclass
from typing import Any

from vlmplan.engines.components import Components

REFERENCE_PHASE = "reference"
"""The forward of the reference, between forward and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One stretch of the run on the fullest GPU: what is live when it ends, and at its highest point."""

    name: str
    resident: Components
    peak: Components

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "resident_bytes": self.resident.total, "peak_bytes": self.peak.total}
