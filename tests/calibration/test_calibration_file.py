"""The file of a calibration: what is written is read again, and what cannot be is refused in one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrations import calibration, kept, kept_with
from vlmplan.calibration import (
    QUANTITIES,
    Calibration,
    MeasuredValue,
    Unit,
    calibration_from_json,
    calibration_text,
    read_calibration,
)
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject, parse_json_object

GPU = "a100-sxm4-80gb"


@pytest.fixture
def config(monkeypatch, tmp_path):
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


@st.composite
def values(draw: st.DrawFn) -> tuple[tuple[str, MeasuredValue], ...]:
    names = draw(st.sets(st.sampled_from(sorted(QUANTITIES))))
    found = []
    for name in QUANTITIES:
        if name in names:
            known = QUANTITIES[name]
            one = (
                st.integers(int(known.least), int(known.most))
                if known.unit is Unit.BYTES
                else st.floats(known.least, known.most)
            )
            low, middle, high = sorted(draw(st.tuples(one, one, one)))
            times = draw(st.integers(1, 10**6))
            found.append((name, MeasuredValue(value=middle, low=low, high=high, repetitions=times)))
    return tuple(found)


@given(
    values=values(), num_ranks=st.integers(1, 8), is_quick=st.booleans(), names=st.dictionaries(st.text(), st.text())
)
def test_what_is_written_is_read_again(values, num_ranks, is_quick, names):
    made = calibration(num_ranks=num_ranks)
    whole = Calibration(
        gpu_id=made.gpu_id,
        device_name=made.device_name,
        measured_on=made.measured_on,
        num_ranks=num_ranks,
        is_quick=is_quick,
        versions=tuple(names.items()),
        values=values,
        not_measured=tuple(names.items()),
    )
    again = calibration_from_json(JsonObject(parse_json_object(calibration_text(whole), source="f"), source="f"))
    assert again == whole


def test_a_gpu_without_a_file_has_no_calibration(config):
    kept(config, calibration(GPU))
    assert read_calibration(GPU) == calibration(GPU)
    assert read_calibration("rtx-4090") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"schema": "vlmplan.calibration/9"},
            'schema is "vlmplan.calibration/9"; one of vlmplan.calibration/2 is needed',
        ),
        (
            {"gpu": {"id": "rtx-4090", "name": "x"}},
            "on rtx-4090, which is another GPU than a100-sxm4-80gb",
        ),
        ({"date": "yesterday"}, 'date is "yesterday"; a day as YYYY-MM-DD is needed'),
        ({"num_ranks": 0}, "num_ranks is 0"),
        ({"values": {"matmul_bf17": {}}}, "matmul_bf17"),
        ({"note": "?"}, "note"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_a_way_out(config, changes, said):
    path = kept_with(config, calibration(GPU), **changes)
    with pytest.raises(InputError) as error:
        read_calibration(GPU)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "vlmplan calibrate" in str(error.value)
    assert "--no-calibration" in str(error.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"unit": "GB/s"}, 'unit is "GB/s"; one of bytes/s is needed'),
        ({"value": 1e15, "high": 1e15}, "values.memory_bandwidth.value is 1000000000000000.0"),
        ({"value": 1.0, "low": 1.0}, "1e+06 to 1e+14 bytes/s is plausible"),
        ({"low": 3e12}, "has to lie between low"),
        ({"repetitions": 0}, "repetitions is 0"),
        ({"value": float("nan")}, "NaN"),
    ],
)
def test_a_value_that_cannot_be_is_refused(config, value, said):
    path = kept(config, calibration(GPU, memory_bandwidth=1.6e12))
    file = json.loads(path.read_text())
    file["values"]["memory_bandwidth"].update(value)
    path.write_text(json.dumps(file))
    with pytest.raises(InputError, match="delete the file") as error:
        read_calibration(GPU)
    assert said in str(error.value)


def test_ends_of_rates_and_of_seconds_are_slow_first():
    made = calibration(memory_bandwidth=1e12, operation_seconds=1e-5)
    assert made.ends("memory_bandwidth") == (0.9 * 1e12, 1e12, 1.2 * 1e12)
    assert made.ends("operation_seconds") == (1.2 * 1e-5, 1e-5, 0.9 * 1e-5)
    assert made.ends("matmul_ramp") is None
