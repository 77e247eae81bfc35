"""Whole runs of KTO through the real TRL on two CPU ranks: they learn, agree with plans, and go on."""

from pathlib import Path

import pytest

pytest.importorskip("trl")

from task_files import LINES, PAIR_TOKENS, equal_pairs, marked_answers
from trainer_runs import Outcome, planned, train_all, train_here

from vlmplan.launch.plan_estimate import estimate_of
from vlmplan.rehearsal import rehearse
from vlmplan_trainer.models.tiny import write_tiny_model

KTO = {"task": "kto", "micro_batch": 2, "grad_accum": 2, "seq_len": PAIR_TOKENS}
EVALUATED = {"eval_batch": 4, "eval_samples": LINES}
ON_TWO = {
    "full-ddp": KTO | {"method": "full", "zero_stage": "none"} | EVALUATED | {"eval_every": "2", "eval_on_start": True},
    "full-2-precomputed": KTO
    | {"method": "full", "zero_stage": "2", "reference": "precomputed"}
    | EVALUATED
    | {"eval_after_training": True},
    "full-3": KTO | {"method": "full", "zero_stage": "3"},
    "lora-3": KTO | {"method": "lora", "zero_stage": "3"},
    "lora-2-apo": KTO | {"method": "lora", "zero_stage": "2", "kto_loss": "apo-zero-unpaired"},
}
TRAINS = ("--learning-rate", "1e-3", "--measured-steps", "4", "--undesirable-weight", "1.1")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A model and its data."""
    folder = tmp_path_factory.mktemp("files")
    write_tiny_model(folder / "llama", "llama")
    equal_pairs(folder), marked_answers(folder)
    return folder


@pytest.fixture(scope="module")
def outcomes(files: Path, tmp_path_factory) -> dict[str, Outcome]:
    """Of runs on two ranks."""
    data = ("--train-data", str(files / "marked.jsonl"), *TRAINS)
    jobs = {}
    for name, options in ON_TWO.items():
        evaluated = ("--eval-data", str(files / "marked.jsonl")) if "eval_batch" in options else ()
        jobs[name] = (planned(files / "llama", num_ranks=2, **options), (*data, *evaluated, "--max-steps", "3"))
    plan, _ = jobs["full-2-precomputed"]
    jobs |= dict.fromkeys(("stopped", "unbroken"), (plan, (*data, "--max-steps", "5", "--save-every", "2")))
    jobs["resumed"] = (plan, (*data, "--max-steps", "5", "--save-every", "2", "--resume"))
    folder = tmp_path_factory.mktemp("runs")
    return train_all(jobs, folder, num_ranks=2, places={"resumed": "stopped"}, stop_after={"stopped": 2})


@pytest.mark.sweep
@pytest.mark.parametrize("name", ON_TWO)
def test_good_answers_come_to_be_likelier_than_bad_ones(outcomes, name):
    """Log-probabilities that an engine in bf16 computes before training are rounded: of 482 by up to 1."""
    assert outcomes[name].code == 0, outcomes[name].err[-2000:]
    steps = [line for line in outcomes[name].metrics if "loss" in line]
    assert steps[0]["loss"] == pytest.approx(0.5 * (1 + 1.1) / 2, abs=0.025 if "precomputed" in name else 1e-4)
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert steps[-1]["rewards/margins"] > steps[0]["rewards/margins"]
    assert steps[-1]["num_tokens"] == 2 * 2 * 2 * PAIR_TOKENS
    if "eval_batch" in ON_TWO[name]:
        assert outcomes[name].report["num_eval_samples"] == LINES
        assert outcomes[name].report["eval_loss"] < steps[0]["loss"]
        evaluations = [line["step"] for line in outcomes[name].metrics if "eval_loss" in line]
        assert evaluations == ([0, 2, 3] if "eval_every" in ON_TWO[name] else [3, 3])


@pytest.mark.sweep
@pytest.mark.parametrize("name", ON_TWO)
def test_every_phase_takes_what_is_planned_and_what_is_rehearsed(files, outcomes, name):
    """Micro batches that wait for the step are made outside of phases, where a CPU is not followed."""
    measured = {line["name"]: line for line in outcomes[name].report["planned_and_measured"]}
    for phase in ("init", "step", "save"):
        assert measured[f"{phase}, peak"]["error"] == pytest.approx(0, abs=0.04), phase
    plan = planned(files / "llama", num_ranks=2, **ON_TWO[name])
    peaks: dict[str, int] = {}
    for phase in rehearse(plan, estimate_of(plan, ())).rehearsed.phases:
        peaks[phase.name] = max(peaks.get(phase.name, 0), phase.peak_bytes)
    assert "reference" in peaks
    for phase in ("forward", "backward", "reference", "step"):
        assert peaks[phase] == pytest.approx(measured[f"{phase}, peak"]["measured"], rel=5e-3), phase


@pytest.mark.sweep
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(outcomes):
    assert [line["step"] for line in outcomes["resumed"].metrics] == [1, 2, 3, 4, 5]
    assert outcomes["resumed"].losses == outcomes["unbroken"].losses


@pytest.mark.sweep
def test_preferences_are_taken_apart(files, tmp_path):
    plan = planned(files / "llama", num_ranks=1, zero_stage="none", **KTO, method="full")
    done = train_here(plan, tmp_path, "--train-data", str(files / "pairs.jsonl"), *TRAINS, "--max-steps", "1")
    assert done.code == 0, done.err[-2000:]
    assert f"{2 * LINES} samples" in done.out
