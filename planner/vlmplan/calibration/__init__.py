"""What was measured on a GPU in place of what the models assume: the values, their file, and where it is kept."""

# pyright: reportUnusedImport=false
from vlmplan.calibration.file import (
    SCHEMA,
    WAY_OUT,
    calibration_from_json,
    calibration_json,
    calibration_path,
    calibration_text,
    read_calibration,
)
from vlmplan.calibration.quantities import QUANTITIES, Unit
from vlmplan.calibration.record import Calibration, MeasuredValue
