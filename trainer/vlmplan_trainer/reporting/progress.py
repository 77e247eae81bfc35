"""What a person sees while a run goes on, from rank 0 only: a bar in a terminal, plain lines in a pipe."""

import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from vlmplan.errors import UnavailableError
from vlmplan.files import write_atomically
from vlmplan.plain_text import can_draw
from vlmplan.plan import Plan
from vlmplan.run.step_bar import StepBar
from vlmplan.run.training import METRICS_FILE, step_line
from vlmplan.units import duration_text, gib_text
from vlmplan_trainer.loop import StepReport
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.reporting.earlier import Earlier
from vlmplan_trainer.reporting.remaining import Remaining


class ProgressReporter:
    """Shows steps and writes them to metrics.jsonl; every rank has one, only rank 0's does anything.

    ``first_step``: steps that are done; what an earlier run wrote of later ones is dropped. ``num_slow_steps``: the
    first ones of this process, which say little of the time that is left. ``of_every_step``: what every line has.
    ``earlier``: what it wrote of the others.
    ``on_lost_output`` is called when standard output is closed at the other end.
    """

    def __init__(
        self,
        plan: Plan,
        output_dir: Path,
        *,
        rank: int,
        num_steps: int,
        first_step: int,
        num_slow_steps: int = 1,
        of_every_step: Mapping[str, Any] | None = None,
        on_lost_output: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_lost_output = on_lost_output
        self._plan, self._num_steps = plan, num_steps
        self._of_every_step = dict(of_every_step or {})
        self._remaining = Remaining(num_slow_steps)
        kept = _kept(output_dir / METRICS_FILE, first_step) if rank == 0 else []
        self.earlier = Earlier.of(kept)
        self._metrics = _opened(output_dir / METRICS_FILE) if rank == 0 else None
        self._bar = StepBar(sys.stdout) if rank == 0 and can_draw(sys.stdout) else None

    def __enter__(self) -> "ProgressReporter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._metrics is not None:
            self._metrics.close()

    def say(self, text: str) -> None:
        if self._metrics is None:
            return
        try:
            if self._bar is not None:
                self._bar.feed(text + "\n")
            else:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
        except OSError:  # whoever read it is gone: vlmplan launch was killed, say
            self._bar, sys.stdout = None, open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
            self._on_lost_output()

    def step(self, report: StepReport, meter: Meter) -> None:
        if self._metrics is None:
            return
        self._remaining.add(report.seconds)
        memory: dict[str, Any] = {"peak_allocated_bytes": meter.peak_allocated_bytes}
        self._write(report.as_json() | memory | self._of_every_step)
        self.say(step_line(report.step, self._num_steps, self._parts(report, meter)))

    def evaluated(self, step: int, values: Mapping[str, Any]) -> None:
        """What was found on --eval-data after ``step``: a line of its own, with ``step`` and ``values``."""
        if self._metrics is not None:
            self._write({"step": step, **values})

    def _write(self, values: Mapping[str, Any]) -> None:
        assert self._metrics is not None
        try:
            self._metrics.write(json.dumps(values).encode() + b"\n")
        except OSError as error:
            raise UnavailableError(f"{self._metrics.name} cannot be written: {error.strerror}") from None

    def _parts(self, report: StepReport, meter: Meter) -> list[str]:
        planned = self._plan.expected.step_seconds
        num_left = self._num_steps - report.step
        left = num_left * self._remaining.step_seconds
        beside = "" if planned is None else f" (planned {duration_text(planned * num_left)})"
        bytes_planned = self._plan.expected.peak_allocated_bytes
        return [
            f"loss {report.loss:.4f}",
            f"lr {report.learning_rate:.2e}",
            f"{report.num_samples / report.seconds:.2f} samples/s",
            f"{report.num_tokens / report.seconds:,.0f} tokens/s",
            f"{gib_text(meter.peak_allocated_bytes)} of {gib_text(bytes_planned)} planned",
            (f"{duration_text(left)} left{beside}" if num_left else "done")
            + (" skipped: gradients overflowed" if report.is_skipped else ""),
        ]


def _kept(path: Path, last_step: int) -> list[bytes]:
    """The lines of the file, which loses those of steps after ``last_step``, all where that is 0, and half a line of a
    run that was killed. Raises UnavailableError where it cannot be had."""
    if not os.path.lexists(path):
        return []
    if not path.is_file():
        raise UnavailableError(f"{path} is no regular file")
    lines = path.read_bytes().splitlines(keepends=True) if last_step else []
    kept = [line for line in lines if _step_of(line) <= last_step]
    write_atomically(path, b"".join(kept), force=True)
    return kept


def _opened(path: Path) -> BinaryIO:
    """The file to append to, unbuffered: a line is written whole or raises. Raises UnavailableError where it cannot be
    had."""
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from None


def _step_of(line: bytes) -> float:
    """The step of a line; infinite where the line is damaged."""
    try:
        return int(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf
