"""What a person sees while a run goes on, from rank 0 only: a bar in a terminal, plain lines in a pipe."""

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vlmplan.files import write_atomically
from vlmplan.plan import Plan
from vlmplan.training import METRICS_FILE
from vlmplan.units import duration_text, gib_text
from vlmplan_trainer.loop import StepReport
from vlmplan_trainer.measure import Meter


class Watcher:
    """Shows steps and writes them to metrics.jsonl; every rank has one, only rank 0's does anything.

    ``first_step``: steps that are done; what an earlier run wrote of later ones is dropped.
    """

    def __init__(self, plan: Plan, output_dir: Path, *, rank: int, num_steps: int, first_step: int) -> None:
        self._plan, self._num_steps = plan, num_steps
        self._is_first = rank == 0
        self.console = Console(quiet=not self._is_first, highlight=False)
        self._metrics = _after(output_dir / METRICS_FILE, first_step) if self._is_first else None
        self._bar: Progress | None = None
        if self._is_first and self.console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console)
            self._task = self._bar.add_task("training", total=num_steps, completed=first_step)

    def __enter__(self) -> "Watcher":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._metrics is not None:
            self._metrics.close()

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def step(self, report: StepReport, meter: Meter) -> None:
        if self._metrics is None:
            return
        memory: dict[str, Any] = {"peak_allocated_bytes": meter.peak_allocated_bytes}
        self._metrics.write(json.dumps(report.as_json() | memory) + "\n")
        self._metrics.flush()
        text = self._line(report, meter)
        if self._bar is not None:
            self._bar.update(self._task, completed=report.step, description=text)
        else:
            self.say(f"step {report.step}/{self._num_steps}  {text}")

    def _line(self, report: StepReport, meter: Meter) -> str:
        planned = self._plan.expected.step_seconds
        left = (self._num_steps - report.step) * report.seconds
        beside = "" if planned is None else f" (planned {duration_text(planned * (self._num_steps - report.step))})"
        skipped = " skipped: gradients overflowed" if report.is_skipped else ""
        bytes_planned = self._plan.expected.peak_allocated_bytes
        memory = f"{gib_text(meter.peak_allocated_bytes)} of {gib_text(bytes_planned)} planned"
        speed = (
            f"{report.num_samples / report.seconds:.2f} samples/s  {report.num_tokens / report.seconds:,.0f} tokens/s"
        )
        time = f"{duration_text(left)} left{beside}" if left else "done"
        return f"loss {report.loss:.4f}  lr {report.learning_rate:.2e}  {speed}  {memory}  {time}{skipped}"


def _after(path: Path, last_step: int) -> TextIO:
    """The file to append to, without lines of steps after ``last_step`` or half a line of a run that was killed."""
    if path.exists():
        kept = [line for line in path.read_text().splitlines(keepends=True) if _step_of(line) <= last_step]
        write_atomically(path, "".join(kept), force=True)
    return path.open("a")


def _step_of(line: str) -> float:
    """The step that a line is about; infinite where it is none."""
    try:
        return int(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError):
        return math.inf
