"""metrics.jsonl has every step once, whatever an earlier run left of it; nobody has to read what is printed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from launch_cases import cpu_plan
from vlmplan.errors import UnavailableError
from vlmplan_trainer.loop import StepReport
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.stopping import StopRequest

BROKEN = [
    b"\xff\xfe\n",
    b'{"step": 1e400}\n',
    b'{"step": null}\n',
    b"[" * 10**5 + b"\n",
    b'{"step": ' + b"9" * 5000 + b"}\n",
    b"{}\n",
    b'{"step": 3}\n',
    b'{"step": 2',
]
"""Lines of none of the steps that are done."""


def report(step: int) -> StepReport:
    values: dict[str, Any] = dict.fromkeys(StepReport.__dataclass_fields__, 1)
    return StepReport(**values | {"step": step, "is_skipped": False})


def reporter(folder: Path, **more: Any) -> ProgressReporter:
    return ProgressReporter(cpu_plan(), folder, rank=0, num_steps=5, first_step=2, **more)


def test_lines_that_are_broken_or_of_later_steps_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "eval_loss": 1}\n' + b"".join(BROKEN))
    with reporter(tmp_path) as progress:
        progress.step(report(3), Meter(torch.device("cpu")))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_a_run_that_begins_anew_keeps_no_line_of_one_that_did_no_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "eval_loss": 1}\n')
    with ProgressReporter(cpu_plan(), tmp_path, rank=0, num_steps=5, first_step=0) as progress:
        assert progress.earlier.evaluations == ()
    assert path.read_bytes() == b""


def test_metrics_that_are_no_regular_file_are_refused(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(UnavailableError, match="is no regular file"):
        reporter(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_metrics_that_a_full_disk_does_not_take_are_named(monkeypatch, tmp_path):
    progress = reporter(tmp_path)
    progress._metrics = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(UnavailableError, match="cannot be written: No space left on device"), progress:
        progress.step(report(3), Meter(torch.device("cpu")))


def test_a_run_whose_output_nobody_reads_is_asked_to_save_and_end(monkeypatch, tmp_path):
    read, write = os.pipe()
    os.close(read)
    stop = StopRequest()
    monkeypatch.setattr(sys, "stdout", os.fdopen(write, "w"))
    with reporter(tmp_path, on_lost_output=stop.ask) as progress:
        progress.say("anything")
        assert stop.signum is not None
        progress.say("again")
