"""What a calibration measured: its document, and a table of every value beside what it replaces."""

from collections.abc import Iterator
from pathlib import Path

from vlmplan.calibration import QUANTITIES, Calibration, MeasuredValue, Unit, calibration_json
from vlmplan.files.json_reader import JsonDict
from vlmplan.memory.allocator import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from vlmplan.notes import listed
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.units import MIB, counted

UNSTEADY = 3.0
"""Times between the quartiles of a value from which on it is no property of the machine. A choice: shapes of a model
differ by a half on an idle one."""
ALLOCATOR = {
    "allocator_small_segment_bytes": SMALL_SEGMENT_BYTES,
    "allocator_large_segment_bytes": LARGE_SEGMENT_BYTES,
}


def document(found: Calibration, path: Path) -> JsonDict:
    """Schema ``vlmplan.calibration/2``, and ``file``, where it was written."""
    return {**calibration_json(found), "file": str(path)}


def print_calibration(found: Calibration, path: Path, *, is_used: bool) -> None:
    """Print everything that was measured; ``is_used``: estimates look where it was written."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions)
    ranks = f", {counted(found.num_ranks, 'rank')}" if found.num_ranks > 1 else ""
    say(f"{found.device_name} ({found.gpu_id}{ranks}), {found.measured_on.isoformat()}: {versions}", "")
    titles = ("measured", "median", "quartiles", "times", "in place of")
    rows = [
        (name.replace("_", " "), _text(name, value.value), _quartiles(name, value), str(value.repetitions), _of(name))
        for name, value in found.values
    ]
    print_table(
        Table(
            titles=titles,
            rows=rows,
            number_columns=frozenset(titles[1:4]),
            least_first=("in place of", "times", "quartiles"),
            cut_columns=frozenset(("measured", "in place of")),
        )
    )
    say("", *_lines(found, path, is_used=is_used))


def _of(name: str) -> str:
    return QUANTITIES[name].replaces


def _lines(found: Calibration, path: Path, *, is_used: bool) -> Iterator[str]:
    for part, reason in found.not_measured:
        yield f"not measured: {part}: {reason}"
    for name, planned in ALLOCATOR.items():
        value = found.value(name)
        if value is not None and round(value.value) != planned:
            yield (
                f"caution: torch here reserves {value.value / MIB:g} MiB, where plans have {planned / MIB:g} MiB "
                f"({QUANTITIES[name].what})"
            )
    unsteady = [name.replace("_", " ") for name, value in found.values if value.high > UNSTEADY * value.low]
    if unsteady:
        yield (
            f"caution: quartiles of {listed(unsteady)} are more than {UNSTEADY:g} times apart; where something else "
            f"used this machine meanwhile, measure again"
        )
    uses = f"; estimates for {found.gpu_id} use it from now on, --no-calibration leaves it out" if is_used else ""
    yield f"written to {path}{uses}"


def _quartiles(name: str, value: MeasuredValue) -> str:
    if value.repetitions == 1:
        return ""
    return f"{_text(name, value.low)} to {_text(name, value.high)}"


def _text(name: str, value: float) -> str:
    match QUANTITIES[name].unit:
        case Unit.FLOPS_PER_SECOND:
            return f"{value / 1e12:.3g} TFLOP/s"
        case Unit.BYTES_PER_SECOND:
            return f"{value / 1e9:.3g} GB/s"
        case Unit.SECONDS:
            return f"{1e6 * value:.3g} us" if value < 1e-2 else f"{1e3 * value:.3g} ms"
        case Unit.BYTES:
            return f"{value / MIB:.4g} MiB"
