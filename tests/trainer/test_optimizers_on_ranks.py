"""Optimizers under ZeRO on two CPU ranks: Muon takes the same steps under every stage, and goes on to them."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from trainer_runs import planned, train_all

from vlmplan.recipe.muon import LR_RATIO, is_orthogonalised
from vlmplan_trainer.models.tiny import write_tiny_model

WORDS = ("--dummy-data", "48", "--learning-rate", "2e-4", "--max-steps", "5", "--measured-steps", "1")
FIELDS = {"method": "full", "num_samples": 48, "global_batch": 8, "micro_batch": 2, "optimizer": "muon"}


@pytest.mark.long
@pytest.mark.sweep
def test_muon_takes_the_same_steps_under_every_stage_and_after_a_stop(tmp_path):
    model = write_tiny_model(tmp_path / "llama", "llama")
    plans = {stage: planned(model, num_ranks=2, zero_stage=stage, **FIELDS) for stage in "123"}
    jobs = {stage: (plan, WORDS) for stage, plan in plans.items()}
    jobs |= {"stopped": (plans["3"], WORDS), "resumed": (plans["3"], (*WORDS, "--resume"))}
    folder = tmp_path / "runs"
    folder.mkdir()
    outcomes = train_all(
        jobs, folder, num_ranks=2, places={"resumed": "stopped"}, stop_after={"stopped": 2}, environment={}
    )
    first = outcomes["1"].losses
    assert first[-1] < first[0]
    for name in ("2", "3", "resumed"):
        assert outcomes[name].losses == pytest.approx(first, rel=0.002), name


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("stage", ["1", "3"])
def test_muon_moves_each_matrix_as_far_as_its_learning_rate_says(stage: str, tmp_path: Path):
    """An orthogonal matrix of rank r has the norm sqrt(r), and tall ones sqrt(rows / columns) times as much
    (``_aspect_ratio_scale``); five steps of Newton and Schulz bring singular values to between 0.7 and 1.2, where they
    were not far smaller than the largest. Clipped to 1, all matrices together would be moved as far as 1."""
    model, rate = write_tiny_model(tmp_path / "llama", "llama"), 1e-3
    plan = planned(model, num_ranks=2, zero_stage=stage, precision="fp32", **FIELDS)
    words = ("--dummy-data", "48", "--learning-rate", str(rate), "--max-steps", "1", "--warmup-fraction", "0")
    done = train_all({"run": (plan, words)}, tmp_path, num_ranks=2)["run"]
    before, after = (load_file(place / "model.safetensors") for place in (model, done.folder / "model"))
    for name, weight in before.items():
        if is_orthogonalised(name, weight.dim()):
            moved = (after[name].float() - weight.float()).norm() / (rate * LR_RATIO)
            expected = min(weight.shape) ** 0.5 * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
            assert 0.4 < moved / expected < 1.25, name
    assert done.metrics[0]["grad_norm"] is None
