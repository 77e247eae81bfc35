"""Curves that cannot be written end a run before its model is loaded."""

import importlib.util

import pytest
from trainer_runs import planned, train_here

import vlmplan_trainer.run as trainer
from vlmplan_trainer.models.tiny import write_tiny_model


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is here")
def test_a_monitor_that_cannot_start_says_so_in_one_sentence_before_the_model_is_loaded(tmp_path, monkeypatch):
    """As one whose package breaks where it is imported, or that nobody has logged in to."""
    plan = planned(write_tiny_model(tmp_path / "llama", "llama"), num_ranks=1)
    monkeypatch.setattr(trainer, "check_monitors", lambda names: None)
    monkeypatch.setattr(trainer, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    done = train_here(plan, tmp_path, "--dummy-data", "4", "--monitor", "wandb")
    assert done.code == 1
    assert done.err == "vlmplan_trainer: --monitor wandb cannot start: No module named 'wandb'\n"


def test_one_rank_meets_nobody_whatever_port_its_shell_names(tmp_path, monkeypatch):
    """Scripts for Slurm export MASTER_PORT for launchers; RANK is set by these alone."""
    monkeypatch.setenv("MASTER_PORT", "29500")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    plan = planned(write_tiny_model(tmp_path / "llama", "llama"), num_ranks=1)
    done = train_here(plan, tmp_path, "--dummy-data", "2", "--monitor", "csv")
    assert done.code == 0, done.err
    assert (tmp_path / "run" / "monitor" / "csv" / "Train_loss.csv").is_file()
