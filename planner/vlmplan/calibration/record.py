"""A calibration: what was measured on one kind of GPU, in which machine and with which versions."""

from dataclasses import dataclass
from datetime import date

from vlmplan.calibration.quantities import QUANTITIES, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredValue:
    """The median of ``repetitions`` measurements, and the quartiles around it; ``low`` is the smaller number."""

    value: float
    low: float
    high: float
    repetitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """``values`` by the names of ``QUANTITIES``; a name that is missing was not measured, ``not_measured`` says why.

    ``num_ranks``: how many GPUs talked to each other in what was measured of links; 1 where there was one alone.
    ``device_name`` is what the driver calls the card, or the processor's model.
    """

    gpu_id: str
    device_name: str
    measured_on: date
    num_ranks: int
    is_quick: bool
    versions: tuple[tuple[str, str], ...]
    values: tuple[tuple[str, MeasuredValue], ...]
    not_measured: tuple[tuple[str, str], ...] = ()

    def value(self, name: str) -> MeasuredValue | None:
        """The measured value; None where it was not measured."""
        return next((value for key, value in self.values if key == name), None)

    def ends(self, name: str) -> tuple[float, float, float] | None:
        """(slow, median, fast): the quartile that makes a step longer first; None where it was not measured."""
        found = self.value(name)
        if found is None:
            return None
        is_rate = QUANTITIES[name].unit.is_rate
        return (found.low, found.value, found.high) if is_rate else (found.high, found.value, found.low)

    def num_bytes(self, name: str, assumed: int) -> int:
        """Bytes as measured, else ``assumed``."""
        found = self.value(name)
        assert QUANTITIES[name].unit is Unit.BYTES
        return assumed if found is None else round(found.value)

    @property
    def sentence(self) -> str:
        """``by a calibration of 2026-11-24 on NVIDIA H100 80GB HBM3 (torch 2.13.0)``."""
        torch = dict(self.versions).get("torch")
        with_torch = "" if torch is None else f" (torch {torch})"
        return f"by a calibration of {self.measured_on.isoformat()} on {self.device_name}{with_torch}"
