"""Bytes of phases on CPU ranks: what gloo's threads still hold of a message is no part of the phase that begins."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vlmplan_trainer import measure
from vlmplan_trainer.measure import Meter


def test_a_phase_begins_when_the_messages_of_the_one_before_are_let_go_of(monkeypatch):
    meter, held = Meter(torch.device("cpu"), num_steps=1), []
    monkeypatch.setattr(measure, "rest", held.clear)
    with meter.phase("backward"):
        held.append(torch.zeros(1000))
    with meter.phase("step"):
        kept = torch.zeros(10)
    assert meter.memory["backward"].peak_bytes == 4000
    assert meter.memory["step"].peak_bytes == kept.nbytes


@pytest.mark.long
@pytest.mark.sweep
def test_the_demo_takes_the_bytes_that_were_planned(tmp_path: Path):
    """As a user starts it, without what other tests do so that gloo's threads let go."""
    words = [
        "-c",
        "from vlmplan.cli import main; main()",
        "launch",
        "--demo",
        "--output-dir",
        "run",
        "--max-steps",
        "4",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "run" / "report.json").read_text())["planned_and_measured"]
    errors = {row["name"]: row["error"] for row in rows}
    for name in ("init, peak", "forward, peak", "step, peak"):
        assert abs(errors[name]) < 0.005, errors
