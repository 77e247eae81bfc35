"""What is printed of a calibration."""

from pathlib import Path

from calibrations import calibration
from documented_json import undocumented
from vlmplan.answers.calibration import document, print_calibration
from vlmplan.calibration import Calibration, MeasuredValue


def printed(found: Calibration, capsys, *, is_used: bool = True) -> str:
    print_calibration(found, Path("here.json"), is_used=is_used)
    return capsys.readouterr().out


def test_every_value_has_its_unit_and_what_it_replaces(capsys):
    text = printed(calibration(matmul_bf16=2.5e14, operation_seconds=7e-6, context_bytes=3 * 2**20), capsys)
    row = next(line for line in text.splitlines() if line.startswith("matmul bf16"))
    assert row.split()[2:10] == ["250", "TFLOP/s", "225", "TFLOP/s", "to", "300", "TFLOP/s", "5"]
    assert "7 us" in text
    assert "3 MiB" in text
    assert "KERNEL_SECONDS" in text
    assert "written to here.json; estimates for a100-sxm4-80gb use it from now on" in text
    assert "from now on" not in printed(calibration(), capsys, is_used=False)


def test_an_allocator_of_other_steps_and_unsteady_values_are_cautions(capsys):
    usual = {"allocator_small_segment_bytes": 2 * 2**20, "allocator_large_segment_bytes": 20 * 2**20}
    assert "caution" not in printed(calibration(**usual), capsys)
    other = printed(calibration(**usual | {"allocator_large_segment_bytes": 32 * 2**20}), capsys)
    assert "caution: torch here reserves 32 MiB, where plans have 20 MiB" in other
    made = calibration()
    noisy = MeasuredValue(value=2e12, low=1e12, high=3.1e12, repetitions=3)
    unsteady = type(made)(
        gpu_id="x", device_name="y", measured_on=made.measured_on, num_ranks=1, is_quick=True, versions=(),
        values=(("memory_bandwidth", noisy),), not_measured=(("images", "Pillow is not installed"),),
    )  # fmt: skip
    text = " ".join(printed(unsteady, capsys).split())
    assert "caution: quartiles of memory bandwidth are more than 3 times apart" in text
    assert "not measured: images: Pillow is not installed" in text
    assert undocumented(document(unsteady, Path("f"))) == set()
    assert document(unsteady, Path("f"))["values"]["memory_bandwidth"]["unit"] == "bytes/s"
