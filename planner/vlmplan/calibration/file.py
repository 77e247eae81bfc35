"""The file of a calibration: ``calibration/GPU.json`` in the user's folder, schema ``vlmplan.calibration/2``."""

import json
import re
from datetime import date
from pathlib import Path

from vlmplan.calibration.quantities import QUANTITIES, Unit
from vlmplan.calibration.record import Calibration, MeasuredValue
from vlmplan.errors import InputError
from vlmplan.files import NOT_JSON, text_if_there
from vlmplan.files.json_reader import JsonDict, JsonObject, parse_json_object
from vlmplan.files.user_config import user_config_dir

SCHEMA = "vlmplan.calibration/2"
"""Files of schema 1 say of an operation a quarter less than it took: it was divided by operations some of which the
model that was timed did not run."""
FOLDER = "calibration"
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
MAX_REPETITIONS = 10**9
WAY_OUT = "measure again with vlmplan calibrate, delete the file, or give --no-calibration"


def calibration_path(gpu_id: str) -> Path | None:
    """The file in which the calibration of this GPU is looked for; None without a home, or for an id that is no file's
    name."""
    folder = user_config_dir()
    if folder is None or not FILE_NAME.fullmatch(gpu_id):
        return None
    return folder / FOLDER / f"{gpu_id}.json"


def read_calibration(gpu_id: str) -> Calibration | None:
    """The calibration of this GPU; None where it has none.

    Raises InputError, in one sentence that says how to go on, for a file of another schema, of another GPU, or with
    values that cannot be.
    """
    path = calibration_path(gpu_id)
    text = None if path is None else text_if_there(path, name=str(path), otherwise=NOT_JSON)
    if text is None:
        return None
    try:
        found = calibration_from_json(JsonObject(parse_json_object(text, source=str(path)), source=str(path)))
        if found.gpu_id != gpu_id:
            raise InputError(f"{path} was measured on {found.gpu_id}, which is another GPU than {gpu_id}")
    except InputError as error:
        raise InputError(f"{error}; {WAY_OUT}") from None
    return found


def calibration_from_json(file: JsonObject) -> Calibration:
    """What ``calibration_json`` wrote. Raises InputError for the first thing in it that cannot be."""
    file.choice("schema", [SCHEMA])
    gpu = file.object("gpu")
    values = file.object("values")
    read = [(name, _value(values, name)) for name in QUANTITIES if name in values]
    values.close(QUANTITIES)
    found = Calibration(
        gpu_id=gpu.text("id"),
        device_name=gpu.text("name"),
        measured_on=_date(file),
        num_ranks=file.count("num_ranks", least=1),
        is_quick=file.flag("quick"),
        versions=_texts(file, "versions"),
        values=tuple(read),
        not_measured=_texts(file, "not_measured"),
    )
    gpu.close()
    file.close()
    return found


def calibration_json(found: Calibration) -> JsonDict:
    """Schema ``vlmplan.calibration/2``: every value with its unit, its quartiles and how often it was taken."""
    return {
        "schema": SCHEMA,
        "gpu": {"id": found.gpu_id, "name": found.device_name},
        "date": found.measured_on.isoformat(),
        "num_ranks": found.num_ranks,
        "quick": found.is_quick,
        "versions": dict(found.versions),
        "values": {name: _value_json(name, value) for name, value in found.values},
        "not_measured": dict(found.not_measured),
    }


def calibration_text(found: Calibration) -> str:
    """The file."""
    return json.dumps(calibration_json(found), indent=2) + "\n"


def _value_json(name: str, value: MeasuredValue) -> JsonDict:
    whole = QUANTITIES[name].unit is Unit.BYTES
    low, middle, high = (round(one) if whole else one for one in (value.low, value.value, value.high))
    return {
        "value": middle,
        "unit": QUANTITIES[name].unit.value,
        "low": low,
        "high": high,
        "repetitions": value.repetitions,
    }


def _value(values: JsonObject, name: str) -> MeasuredValue:
    known, one = QUANTITIES[name], values.object(name)
    one.choice("unit", [known.unit.value])
    low, middle, high = (one.number(key) for key in ("low", "value", "high"))
    if not known.least <= middle <= known.most:
        one.complain("value", f"{known.least:g} to {known.most:g} {known.unit.value} is plausible")
    if not low <= middle <= high:
        one.complain("value", f"it has to lie between low, {low:g}, and high, {high:g}")
    found = MeasuredValue(
        value=middle, low=low, high=high, repetitions=one.count("repetitions", least=1, most=MAX_REPETITIONS)
    )
    one.close()
    return found


def _date(file: JsonObject) -> date:
    try:
        return date.fromisoformat(file.text("date"))
    except ValueError:
        file.refuse("date", "a day as YYYY-MM-DD")


def _texts(file: JsonObject, key: str) -> tuple[tuple[str, str], ...]:
    section = file.object(key)
    return tuple((name, section.text(name)) for name in section.values)
