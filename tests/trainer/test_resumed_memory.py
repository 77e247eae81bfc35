"""What reading a checkpoint takes, planned and measured: on CPU ranks, whose devices are the host itself."""

import shutil
from pathlib import Path

import pytest
from trainer_runs import Outcome, planned, train_all, train_here

from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "48", "--learning-rate", "1e-2", "--save-every", "1")
FIRST = (*WORDS, "--max-steps", "1", "--measured-steps", "0")
LONGER = (*WORDS, "--max-steps", "2", "--measured-steps", "1", "--resume")
SMALL_BYTES = 16_384
"""Of numbers beside tensors: steps of every weight's state, random numbers."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama", hidden_size=128)


def plan_of(model: Path, method: str, stage: str, num_ranks: int):
    options = {"method": method, "num_samples": 48, "global_batch": 8, "micro_batch": 4 // num_ranks}
    return planned(model, num_ranks=num_ranks, zero_stage=stage, **options)


def resume_peaks(done: Outcome) -> tuple[int, int]:
    """(planned, measured) bytes."""
    assert done.code == 0, done.err
    [line] = [line for line in done.report["planned_and_measured"] if line["name"] == "resume, peak"]
    return line["planned"], line["measured"]


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.sweep)])
def test_plain_training_goes_on_with_what_is_planned(model: Path, tmp_path: Path, method: str):
    plan = plan_of(model, method, "none", 1)
    assert train_here(plan, tmp_path, *FIRST).code == 0
    (tmp_path / "run" / "report.json").unlink()
    expected, found = resume_peaks(train_here(plan, tmp_path, *LONGER))
    assert 0 <= found - expected <= SMALL_BYTES


@pytest.mark.long
@pytest.mark.sweep
def test_every_engine_goes_on_with_what_is_planned(model: Path, tmp_path: Path):
    plans = {
        f"{method} {stage}": plan_of(model, method, stage, 2)
        for method in ("full", "lora")
        for stage in ("none", "0", "1", "2", "3")
    }
    first = train_all({name: (plan, FIRST) for name, plan in plans.items()}, tmp_path / "first", num_ranks=2)
    for name, done in first.items():
        assert done.code == 0, done.err
        shutil.copytree(done.folder, tmp_path / "later" / name / "run")
    later = train_all({name: (plan, LONGER) for name, plan in plans.items()}, tmp_path / "later", num_ranks=2)
    for name, done in later.items():
        expected, found = resume_peaks(done)
        assert 0 <= found - expected <= SMALL_BYTES, name
