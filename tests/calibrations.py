"""Calibrations for tests: made, not measured."""

import json
from datetime import date
from pathlib import Path
from typing import Any

from vlmplan.calibration import QUANTITIES, Calibration, MeasuredValue, calibration_json, calibration_text

DAY = date(2026, 11, 24)


def calibration(gpu_id: str = "a100-sxm4-80gb", num_ranks: int = 1, **values: float) -> Calibration:
    """One with these values, each with quartiles of 0.9 and 1.2 of it."""
    return Calibration(
        gpu_id=gpu_id,
        device_name="a card",
        measured_on=DAY,
        num_ranks=num_ranks,
        is_quick=False,
        versions=(("torch", "2.13.0"),),
        values=tuple(
            (name, MeasuredValue(value=values[name], low=0.9 * values[name], high=1.2 * values[name], repetitions=5))
            for name in QUANTITIES
            if name in values
        ),
    )


def kept(config: Path, found: Calibration) -> Path:
    """Where estimates look for it, in the folder of settings ``config``."""
    path = config / "vlmplan" / "calibration" / f"{found.gpu_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(calibration_text(found), encoding="utf-8")
    return path


def kept_with(config: Path, found: Calibration, **changes: Any) -> Path:
    """The same with other keys at the top of the file."""
    path = kept(config, found)
    path.write_text(json.dumps({**calibration_json(found), **changes}), encoding="utf-8")
    return path
