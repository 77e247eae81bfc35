"""Whether the prediction held: planned beside measured memory, time and money, as report.json and as a table."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from vlmplan.phase_names import RESUME
from vlmplan.plan import Plan
from vlmplan.recipe.choices import Offload
from vlmplan.units import GIB, SECONDS_PER_HOUR
from vlmplan_trainer.loop import Position
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.reporting.earlier import Pace
from vlmplan_trainer.reporting.evaluated import Evaluated

SCHEMA = "vlmplan.report/1"


@dataclass(frozen=True, slots=True)
class ReportedFigure:
    """One figure, planned and measured. ``unit`` is bytes, seconds, tokens/s or usd."""

    name: str
    unit: str
    planned: float | None
    measured: float | None

    @property
    def error(self) -> float | None:
        """(planned - measured) / measured: above zero where the plan was too high."""
        if not self.planned or not self.measured:
            return None
        return self.planned / self.measured - 1

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"error": self.error}


def lines(
    plan: Plan,
    meter: Meter,
    position: Position,
    *,
    pace: Pace,
    evaluated: Evaluated | None = None,
) -> list[ReportedFigure]:
    """Every figure that was measured. Bytes are of the fullest rank, money of the optimizer steps done, seconds of
    evaluation of the last one."""
    expected = plan.expected
    peaks = {phase.name: phase.peak_bytes for phase in expected.phases} | {RESUME: expected.resume_peak_bytes}
    planned = {name: None if _offloads_to_itself(plan) else num_bytes for name, num_bytes in peaks.items()}
    found = [
        ReportedFigure(f"{name}, peak", "bytes", planned.get(name), memory.peak_bytes)
        for name, memory in meter.memory.items()
    ]
    peak = None if _offloads_to_itself(plan) else expected.peak_allocated_bytes
    measured_peak = max(meter.peak_allocated_bytes, pace.peak_bytes) or None  # no step was followed
    found.append(ReportedFigure("peak allocated", "bytes", peak, measured_peak))
    if meter.peak_reserved_bytes:
        found.append(ReportedFigure("peak reserved", "bytes", expected.shown_reserved_bytes, meter.peak_reserved_bytes))
        found.append(ReportedFigure("device", "bytes", expected.shown_device_bytes, meter.peak_device_bytes))
    found.append(ReportedFigure("step", "seconds", expected.step_seconds, pace.step_seconds))
    planned_rate = None
    if expected.step_seconds:
        rows = plan.recipe.rows_per_step(plan.hardware.num_gpus)  # those of both answers in DPO, as are measured
        planned_rate = rows * plan.workload.seq_len / expected.step_seconds
    found.append(ReportedFigure("speed", "tokens/s", planned_rate, pace.tokens_per_second))
    if evaluated is not None and evaluated.seconds is not None:
        found.append(ReportedFigure("evaluation", "seconds", plan.seconds_per_evaluation, evaluated.seconds))
    if plan.offer is not None:
        planned_usd = None if expected.step_seconds is None else usd_so_far(plan, position.step * expected.step_seconds)
        found.append(ReportedFigure("usd so far", "usd", planned_usd, usd_so_far(plan, position.seconds)))
    return found


def _offloads_to_itself(plan: Plan) -> bool:
    """Whether what the plan counts as the host's is among a rank's tensors: CPU ranks have no other memory."""
    offloads = {plan.recipe.offload_optimizer, plan.recipe.offload_params}
    return plan.hardware.vendor == "cpu" and Offload.CPU in offloads


def usd_so_far(plan: Plan, seconds: float) -> float | None:
    if plan.offer is None:
        return None
    return plan.offer.usd_per_hour * plan.hardware.num_nodes * seconds / SECONDS_PER_HOUR


def print_report(console: Console, found: list[ReportedFigure]) -> None:
    """The table of planned and measured figures."""
    table = Table(title="planned and measured", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in ("planned", "measured", "error"):
        table.add_column(name, justify="right")
    for line in found:
        error = "-" if line.error is None else f"{round(line.error, 3) + 0.0:+.1%}"  # never -0.0%
        table.add_row(line.name, _text(line.planned, line.unit), _text(line.measured, line.unit), error)
    console.print(table)


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value / GIB:.2f} GiB" if value >= 0.01 * GIB else f"{value / 2**20:.2f} MiB"
    if unit == "seconds":
        return f"{value:.3f} s"
    return f"{value:,.2f} {unit}" if unit != "usd" else f"${value:,.4f}"
