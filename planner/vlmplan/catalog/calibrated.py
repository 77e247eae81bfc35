"""A GPU with its calibration, where the two can belong together."""

from dataclasses import replace

from vlmplan.calibration import WAY_OUT, calibration_path, read_calibration
from vlmplan.errors import InputError
from vlmplan.hardware import Gpu

MOST_OF_DATA_SHEET = 1.5
"""Part of a data sheet's rate above which a measured one is a mistake. Assumed: cards of GeForce exceed the boost clock
that is stated by up to 15%, and power limits can be raised by a third."""
DATA_SHEET = {
    "matmul_bf16": "bf16",
    "matmul_fp16": "fp16",
    "attention_sdpa_bf16": "bf16",
    "attention_sdpa_fp16": "fp16",
    "attention_flash_attention_2_bf16": "bf16",
    "attention_flash_attention_2_fp16": "fp16",
}


def calibrated(gpu: Gpu) -> Gpu:
    """``gpu`` with the user's calibration of it, or as it is where there is none.

    Raises InputError for a file that cannot be read as one, or whose rates the card cannot have.
    """
    found = read_calibration(gpu.id)
    if found is None:
        return gpu
    for name, sheet in _sheet_rates(gpu).items():
        value = found.value(name)
        if value is not None and value.value > MOST_OF_DATA_SHEET * sheet:
            raise InputError(
                f"{calibration_path(gpu.id)}: values.{name}.value is {value.value:.3g}, more than "
                f"{MOST_OF_DATA_SHEET:g} times the {sheet:.3g} of the data sheet of {gpu.name}; {WAY_OUT}"
            )
    return replace(gpu, calibration=found)


def _sheet_rates(gpu: Gpu) -> dict[str, float]:
    """The data sheet's rates by the names of the quantities that cannot be far above them."""
    peaks = {name: getattr(gpu.peak_flops_per_second, kind) for name, kind in DATA_SHEET.items()}
    peaks["memory_bandwidth"] = gpu.memory_bandwidth_bytes_per_second
    return {name: rate for name, rate in peaks.items() if rate is not None}
