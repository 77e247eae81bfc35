"""``PlanCallback`` in the real Trainer: its plan against what it measures, and what it does where nothing fits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prepared import free_port

from vlmplan_trainer.models.tiny import write_tiny_model

RUN = Path(__file__).parent / "hugging_face_run.py"
TOLERANCE_FRACTION = {"forward": 0.01, "backward": 0.01, "step": 0.01}
WIDE_ADAPTERS = {"forward": 0.02, "backward": 0.02, "step": 0.02}
"""Under ZeRO-3 with float32 adapters, a sixth of the model here: backward varies by its reductions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "llama"
    write_tiny_model(place, "llama", hidden_size=256, num_layers=4)
    return place


def outcome(folder: Path, place: Path, *, num_ranks: int, **job: Any) -> dict[str, Any]:
    """What rank 0 says of a run."""
    given = {"folder": str(folder), "output": str(place / "out"), "result": str(place / "result.json"), **job}
    command = [sys.executable]
    if num_ranks > 1:
        command += ["-m", "torch.distributed.run", f"--nproc_per_node={num_ranks}", f"--master_port={free_port()}"]
    done = subprocess.run(
        [*command, str(RUN), json.dumps(given)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((place / "result.json").read_text())


def errors(result: dict[str, Any]) -> dict[str, float]:
    """Planned over measured, less one, of each phase."""
    assert result["why_not"] is None
    lines = {line["name"]: line for line in result["lines"]}
    return {name: lines[f"{name}, peak"]["error"] for name in TOLERANCE_FRACTION}


@pytest.mark.sweep
def test_a_plan_of_the_live_model_is_within_a_hundredth_of_what_the_trainer_takes(folder: Path, tmp_path: Path):
    found = errors(outcome(folder, tmp_path, num_ranks=1, method="full", stage=None))
    assert all(abs(found[name]) < TOLERANCE_FRACTION[name] for name in found), found
    report = json.loads((tmp_path / "out" / "vlmplan-report.json").read_text())
    assert report["schema"] == "vlmplan.callback/1"
    assert report["estimate"]["recipe"]["loss"] == "model"


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize(("method", "stage"), [("full", 2), ("lora", 3)])
def test_on_two_ranks_it_is_too(folder: Path, tmp_path: Path, method: str, stage: int | None):
    found = errors(outcome(folder, tmp_path, num_ranks=2, method=method, stage=stage))
    allowed = WIDE_ADAPTERS if stage == 3 else TOLERANCE_FRACTION
    assert all(abs(found[name]) < allowed[name] for name in found), found


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize(("stage", "num_ranks", "accumulation"), [(None, 2, 1), (3, 2, None)])
def test_evaluation_with_all_logits_kept_is_within_a_hundredth_too(
    folder: Path, tmp_path: Path, stage: int | None, num_ranks: int, accumulation: int | None
):
    options = {"eval_keeps": "logits", "eval_samples": 40}
    job = {"method": "full", "stage": stage, "evaluation": accumulation, "options": options}
    result = outcome(folder, tmp_path, num_ranks=num_ranks, **job)
    assert result["why_not"] is None
    lines = {line["name"]: line for line in result["lines"]}
    assert abs(lines["evaluation, peak"]["error"]) < 0.01, lines


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("on_too_large", ["warn", "stop"])
def test_what_cannot_fit_is_said_before_the_first_step(folder: Path, tmp_path: Path, on_too_large: str):
    options = {"on_too_large": on_too_large, "gpu": "rtx-4060", "seq_len": 4_000_000}
    result = outcome(folder, tmp_path, num_ranks=1, method="full", stage=None, options=options)
    [said] = result["warned"] if on_too_large == "warn" else [result["stopped"]]
    assert "samples of 4,000,000 tokens need" in said
    assert "vlmplan estimate" in said
    assert bool(result["lines"]) is (on_too_large == "warn")
