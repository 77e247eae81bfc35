"""Tasks that start from an adapter that was trained before: they are held to it, and go on from it."""

import math
from pathlib import Path

import pytest

pytest.importorskip("trl")

import torch
from many_runs import forget_accelerate
from peft import PeftModel
from safetensors.torch import load_file
from task_files import PAIR_TOKENS, equal_pairs, marked_answers, prompts, rewards
from trainer_runs import assert_goes_on_alike, planned, train_here
from transformers import AutoModelForCausalLM

from cli_calls import call
from vlmplan_trainer.models.tiny import write_tiny_model

LORA = {"zero_stage": "none", "method": "lora", "micro_batch": 2, "seq_len": PAIR_TOKENS}
STEPS = ("--learning-rate", "1e-3", "--measured-steps", "4", "--max-steps", "4", "--save-every", "2")
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A model, an adapter of it that changes what it says, and data."""
    folder = tmp_path_factory.mktemp("files")
    model = write_tiny_model(folder / "llama", "llama")
    equal_pairs(folder), marked_answers(folder), prompts(folder, sees=False), rewards(folder)
    plan = planned(model, num_ranks=1, **LORA)
    words = ("--dummy-data", "8", "--learning-rate", "0.1", "--schedule", "constant", "--measured-steps", "0")
    done = train_here(plan, folder / "first", *words)
    assert done.code == 0, done.err
    done.folder.joinpath("adapter").rename(folder / "adapter")
    return folder


def plan_of(files: Path, **options):
    return planned(files / "llama", num_ranks=1, **LORA, **options)


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_a_run_is_held_to_the_adapter_that_it_starts_from(files, tmp_path, task):
    data = files / ("pairs.jsonl" if task == "dpo" else "marked.jsonl")
    words = (*STEPS, "--train-data", str(data), "--adapter", str(files / "adapter"))
    held = train_here(plan_of(files, task=task, reference="adapter-copy"), tmp_path / "held", *words)
    assert held.code == 0, held.err
    assert held.losses[0] == pytest.approx(math.log(2) if task == "dpo" else 0.5, abs=1e-6)
    other = train_here(plan_of(files, task=task, reference="adapter-off"), tmp_path / "other", *words)
    forget_accelerate()
    assert abs(other.losses[0] - held.losses[0]) > 1e-3  # held to the model without it
    adapter = load_file(held.folder / "adapter" / WEIGHTS)
    first = load_file(files / "adapter" / WEIGHTS)
    assert adapter.keys() == first.keys()
    assert not all(torch.equal(weight, first[name]) for name, weight in adapter.items())
    assert not list((held.folder / "adapter").rglob("*ref*"))
    assert not list((held.folder / "checkpoints").rglob("ref"))
    report = {line["name"]: line["error"] for line in held.report["planned_and_measured"]}
    for name in ("init, peak", "step, peak", "save, peak"):
        assert report[name] == pytest.approx(0, abs=0.02), name
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(files / "llama"), held.folder / "adapter")


def test_a_stopped_run_goes_on_held_to_the_same_adapter_and_to_no_other(files, tmp_path):
    plan = plan_of(files, task="dpo", reference="adapter-copy", lora_dropout=0.1)
    words = (*STEPS, "--train-data", str(files / "pairs.jsonl"))
    own = tmp_path / "adapter"
    own.mkdir()
    for path in (files / "adapter").iterdir():
        (own / path.name).write_bytes(path.read_bytes())
    words = (*words, "--adapter", str(own))
    whole = train_here(plan, tmp_path / "whole", *words)
    assert whole.code == 0, whole.err
    assert_goes_on_alike(plan, whole, tmp_path / "on", *words)
    run = tmp_path / "on" / "run"
    (run / "plan.json").write_bytes((tmp_path / "on" / "plan.json").read_bytes())
    other = call("launch", "--resume", "--output-dir", str(run), "--reference", "adapter-off", "--max-steps", "6")
    assert "cannot be resumed with --reference adapter-off" in other.err  # --task need not be said again
    (own / WEIGHTS).write_bytes((whole.folder / "adapter" / WEIGHTS).read_bytes())
    (run / "report.json").unlink()
    refused = train_here(plan, tmp_path / "on", *words, "--resume", "--max-steps", "6")
    forget_accelerate()
    assert refused.code == 1
    assert "adapter of the reference (SHA-256)" in refused.err


@pytest.mark.parametrize(
    ("task", "more"),
    [("reward", {}), ("grpo", {}), ("grpo", {"reference": "adapter-copy"})],
)
def test_other_tasks_start_from_an_adapter_too(files, tmp_path, task, more):
    """A step that changes nothing leaves it as it was."""
    if task == "grpo":
        more = {**more, "num_generations": 2, "max_completion_tokens": 8, "seq_len": 32}
        data = ("--train-data", str(files / "prompts.jsonl"), "--rewards", str(files / "rewards.py"))
    else:
        data = ("--train-data", str(files / "pairs.jsonl"))
    plan = planned(files / "llama", num_ranks=1, task=task, **(LORA | more))
    words = ("--learning-rate", "0", "--max-steps", "1", "--measured-steps", "0", "--adapter", str(files / "adapter"))
    done = train_here(plan, tmp_path, *words, *data)
    forget_accelerate()
    assert done.code == 0, done.err
    found, first = (load_file(folder / WEIGHTS) for folder in (done.folder / "adapter", files / "adapter"))
    assert {name for name in found if "lora_" in name} == set(first)
    assert all(torch.equal(found[name], weight) for name, weight in first.items())
