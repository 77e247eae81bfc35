"""Curves for TensorBoard, Weights & Biases and CSV, through DeepSpeed's monitor (``deepspeed/monitor``), from rank 0.

The trainer writes, not DeepSpeed's engine: plain PyTorch has the same curves under the same names, by optimizer step
and not by sample. The engine's own monitor stays off unless a ds_config.json of the user turns it on.
"""

import csv
import io
import os
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError, MissingPackageError
from vlmplan.files import write_atomically
from vlmplan.run.training import monitor_problems
from vlmplan_trainer.loop import StepReport
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.ranks import of_all_ranks

FOLDER = "monitor"
PROJECT = "vlmplan"
"""The project of a run at Weights & Biases; the variables of ``wandb`` (WANDB_MODE, WANDB_NAME) say everything else."""
KEYS = {"tensorboard": "tensorboard", "wandb": "wandb", "csv": "csv_monitor"}
"""The blocks of DeepSpeed's configuration."""


def check_monitors(names: Collection[str]) -> None:
    """Raises MissingPackageError for a monitor whose package is not installed."""
    for problem in monitor_problems(names, lambda package: find_spec(package) is not None):
        raise MissingPackageError(problem)


class Monitors:
    """The writers of a run's curves, in ``output_dir/monitor``. Every rank has one, only rank 0's does anything.

    Raises InputError, on every rank, where a monitor cannot be started.
    """

    def __init__(self, names: Collection[str], output_dir: Path, *, rank: int) -> None:
        self._folder = output_dir / FOLDER
        self._master: Any = None
        if names:
            problem = self._started(names) if rank == 0 else None
            problem = of_all_ranks(problem)[0]
            if problem is not None:
                raise InputError(problem)

    def _started(self, names: Collection[str]) -> str | None:
        """Start the monitors; why they cannot be."""
        from deepspeed.monitor.config import get_monitor_config
        from deepspeed.monitor.monitor import MonitorMaster

        self._folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_DIR", str(self._folder))
        config = {KEYS[name]: {"enabled": True} | _place(name, self._folder) for name in names}
        try:
            self._master = MonitorMaster(get_monitor_config(config))
        except Exception as error:  # whatever the packages raise: no login, no network, no place
            return f"--monitor {' '.join(names)} cannot start: {' '.join(str(error).split())}"
        return None

    def go_on_after(self, step: int) -> None:
        """Drop from CSV files what an earlier run wrote of steps after ``step``."""
        if self._master is not None and self._master.csv_monitor is not None:
            kept = [path.stem for path in sorted((self._folder / "csv").glob("*.csv")) if _cut(path, step)]
            self._master.csv_monitor.filenames = kept  # which have their header

    def step(self, report: StepReport, meter: Meter) -> None:
        """The curves of one optimizer step."""
        self._write(
            report.step,
            {
                "Train/loss": report.loss,
                "Train/learning_rate": report.learning_rate,
                "Train/tokens_per_second": report.num_tokens / report.seconds,
                "Train/peak_allocated_bytes": meter.peak_allocated_bytes,
            },
        )

    def evaluated(self, step: int, loss: float) -> None:
        """The loss on --eval-data after ``step``."""
        self._write(step, {"Eval/loss": loss})

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._master is not None:
            self._master.write_events([(name, value, step) for name, value in values.items()])


def _place(name: str, folder: Path) -> dict[str, str]:
    """The options that tell a monitor where it writes, in its own words."""
    return {"project": PROJECT} if name == "wandb" else {"output_path": str(folder), "job_name": name}


def _cut(path: Path, last_step: int) -> bool:
    """Drop the rows of steps after ``last_step``, and the file where none is left; whether it stays."""
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    kept = [row for row in rows if len(row) == len(header) and row[0].isdecimal() and int(row[0]) <= last_step]
    if not kept:
        path.unlink()
        return False
    text = io.StringIO()
    csv.writer(text).writerows([header, *kept])
    write_atomically(path, text.getvalue(), force=True)
    return True
