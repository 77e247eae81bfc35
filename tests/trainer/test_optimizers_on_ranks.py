"""Optimizers under ZeRO on two CPU ranks: Muon takes the same steps under every stage, and goes on to them."""

import pytest
from trainer_runs import planned, train_all

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
