"""What an answer says of the calibration that its numbers come from."""

from typing import TYPE_CHECKING

from vlmplan.files.json_reader import JsonDict

if TYPE_CHECKING:
    from vlmplan.calibration import Calibration


def reference_json(found: "Calibration | None") -> JsonDict | None:
    """What an estimate says of the calibration that it used; null where it used none."""
    if found is None:
        return None
    return {
        "gpu": found.gpu_id,
        "device": found.device_name,
        "date": found.measured_on.isoformat(),
        "num_ranks": found.num_ranks,
        "versions": dict(found.versions),
    }


def reference_line(found: "Calibration | None") -> list[str]:
    """The line that says what was measured; none where nothing was."""
    if found is None:
        return []
    return [f"measured: seconds and fixed bytes {found.sentence}; --no-calibration leaves it out"]
