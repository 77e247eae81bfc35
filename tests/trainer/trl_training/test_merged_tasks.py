"""The adapter of a task that has ended is merged afterwards, and what is merged loads."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("trl")

import torch
from safetensors.torch import load_file
from task_files import equal_pairs, marked_answers
from trainer_runs import planned, train_here
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from vlmplan_trainer.models.tiny import write_tiny_model

pytestmark = [pytest.mark.sweep, pytest.mark.long]

STOPS = {"eval_batch": 4, "eval_every": "1", "early_stopping_patience": 1}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next((folder / "merged").glob("*.safetensors")))


@pytest.mark.parametrize("task", ["kto", "reward"])
def test_a_task_that_stopped_early_is_merged_afterwards_as_at_once(tmp_path, task: str):
    model = write_tiny_model(tmp_path / "llama", "llama")
    data = str(marked_answers(tmp_path) if task == "kto" else equal_pairs(tmp_path))
    plan = planned(model, num_ranks=1, task=task, zero_stage="none", method="lora", micro_batch=2, seq_len=95, **STOPS)
    words = ("--train-data", data, "--eval-data", data, "--learning-rate", "1", "--schedule", "constant")
    words = (*words, "--measured-steps", "0", "--merge-adapters")
    whole = train_here(plan, tmp_path / "run", *words)
    assert whole.code == 0, whole.err
    assert whole.report["stopped_early"] is True
    at_once = weights(whole.folder)
    shutil.rmtree(whole.folder / "merged")
    shutil.rmtree(whole.folder / "checkpoints")
    later = train_here(plan, tmp_path / "run", *words, "--resume")
    assert later.code == 0, later.err
    found = weights(later.folder)
    assert found.keys() == at_once.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in at_once.items())
    assert later.report["result"] == str(later.folder / "merged")
    kind = AutoModelForCausalLM if task == "kto" else AutoModelForSequenceClassification
    inputs = AutoTokenizer.from_pretrained(later.folder / "merged")("What is it?", return_tensors="pt")
    assert kind.from_pretrained(later.folder / "merged")(**inputs).logits.isfinite().all()
