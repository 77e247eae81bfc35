"""Whole runs of DPO and GRPO through the real TRL on CPU ranks: they learn, agree with plans, and go on."""

import math
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("trl")

from gpu_head import HEAD_AS_ON_GPUS, make_head_as_on_gpus
from many_runs import forget_accelerate
from task_files import LINES, PAIR_TOKENS, equal_pairs, marked_answers, preferences, prompts, rewards
from trainer_runs import Outcome, planned, start, train_all, train_here

from vlmplan.launch.plan_estimate import estimate_of
from vlmplan.rehearsal import rehearse
from vlmplan_trainer.models.tiny import write_tiny_model

COMMON = ("--learning-rate", "1e-3", "--measured-steps", "4")
DPO = {"task": "dpo", "micro_batch": 2, "grad_accum": 2, "max_completion_tokens": 42}
REWARD = {"task": "reward", "micro_batch": 2, "grad_accum": 2, "seq_len": PAIR_TOKENS}
KTO = {"task": "kto", "micro_batch": 2, "grad_accum": 2, "seq_len": PAIR_TOKENS, "max_completion_tokens": 77}
GRPO = {"task": "grpo", "micro_batch": 2, "grad_accum": 2, "num_generations": 4, "max_completion_tokens": 16}
ON_TWO = {
    "dpo-full-2": ("llama", DPO | {"method": "full", "zero_stage": "2"}),
    "dpo-lora-3": ("llama", DPO | {"method": "lora", "zero_stage": "3"}),
    "dpo-precomputed": ("llama", DPO | {"method": "full", "zero_stage": "2", "reference": "precomputed"}),
    "grpo-lora-2": ("qwen2_vl", GRPO | {"method": "lora", "zero_stage": "2", "reference": "adapter-off"}),
    "grpo-full-3": ("qwen2_vl", GRPO | {"method": "full", "zero_stage": "3", "reference": "copy"}),
}
LONG = ("--max-steps", "5", "--save-every", "2")
STOPPED = "dpo-full-2-stopped"
FEW = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Models, data and reward functions, by their names."""
    folder = tmp_path_factory.mktemp("files")
    for family in ("llama", "qwen2_vl"):
        write_tiny_model(folder / family, family)
    preferences(folder), equal_pairs(folder), prompts(folder, sees=True), prompts(folder, sees=False), rewards(folder)
    return folder


def words(files: Path, family: str, options: dict) -> tuple[str, ...]:
    if options["task"] == "reward":
        return ("--train-data", str(files / "pairs.jsonl"), *COMMON)
    if options["task"] == "kto":
        return ("--train-data", str(marked_answers(files)), *COMMON)
    if options["task"] == "dpo":
        return ("--train-data", str(files / "preferences.jsonl"), *COMMON)
    data = files / ("prompts-seen.jsonl" if family == "qwen2_vl" else "prompts.jsonl")
    return ("--train-data", str(data), "--rewards", str(files / "rewards.py"), *COMMON)


def evaluated_of(options: dict) -> dict:
    """In batches of another size than micro batches."""
    return {"eval_batch": 4, "eval_samples": LINES}


def held_out(data: Path, options: dict) -> str:
    """What is evaluated: the same pairs, or few of the prompts, as each of them is answered."""
    if options["task"] != "grpo":
        return str(data)
    few = data.with_stem(f"{data.stem}-few")
    few.write_text("".join(data.read_text().splitlines(keepends=True)[:FEW]))
    return str(few)


@pytest.fixture(scope="module")
def outcomes(files: Path, tmp_path_factory) -> dict[str, Outcome]:
    """Of runs on two ranks."""
    jobs = {}
    for name, (family, options) in ON_TWO.items():
        plan = planned(files / family, num_ranks=2, **options, **evaluated_of(options))
        given = words(files, family, options)
        jobs[name] = (plan, (*given, "--eval-data", held_out(Path(given[1]), options), "--max-steps", "3"))
    plan, (*given, _, _) = jobs["dpo-full-2"]
    jobs |= dict.fromkeys((STOPPED, "unbroken"), (plan, (*given, *LONG)))
    jobs["resumed"] = (plan, (*given, *LONG, "--resume"))
    folder = tmp_path_factory.mktemp("runs")
    found = train_all(jobs, folder, num_ranks=2, places={"resumed": STOPPED}, stop_after={STOPPED: 2})
    codes = {name: outcome.code for name, outcome in found.items()}
    assert codes == dict.fromkeys(jobs, 0) | {STOPPED: 128 + signal.SIGTERM}, found["unbroken"].err[-3000:]
    return found


@pytest.mark.parametrize("name", [name for name in ON_TWO if name.startswith("dpo")])
def test_preferences_are_learnt_from_where_the_reference_is(outcomes, name):
    first, *_, last, _ = outcomes[name].metrics
    assert first["loss"] == pytest.approx(math.log(2), abs=0.01)
    assert last["loss"] < 0.8 * first["loss"]
    assert last["rewards/chosen"] - last["rewards/rejected"] == pytest.approx(last["rewards/margins"], abs=1e-4)
    assert last["rewards/margins"] > 0.1
    assert (last["num_tokens"], last["num_label_tokens"]) == (2 * 2 * 2 * 2 * 64, 2 * 2 * 2 * 2 * 42)


@pytest.mark.parametrize("name", [name for name in ON_TWO if name.startswith("dpo")])
def test_pairs_are_evaluated_by_both_models_when_an_epoch_ends(outcomes, name):
    report = outcomes[name].report
    *steps, line = outcomes[name].metrics
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert line["step"] == 3
    assert line["eval_loss"] < 0.8 * steps[0]["loss"]  # what is evaluated is what was learnt
    assert line["eval_rewards/accuracies"] == 1
    assert line["eval_rewards/margins"] > 0.1
    assert line["num_eval_samples"] == LINES
    assert line["num_eval_left_out"] == 0
    assert {key: value for key, value in line.items() if key != "step"}.items() <= report.items()


@pytest.mark.parametrize("name", [name for name in ON_TWO if name.startswith("grpo")])
def test_answers_to_other_prompts_are_rewarded_when_an_epoch_ends(outcomes, name):
    *_, line = outcomes[name].metrics
    parts = [line[f"eval_rewards/{function}/mean"] for function in ("shortness", "names_colour", "constant")]
    assert line["eval_reward"] == pytest.approx(sum(parts), abs=1e-5)
    assert (parts[2], line["num_eval_samples"]) == (2.5, FEW)
    assert f"reward {line['eval_reward']:.4f} on" in outcomes[name].out


@pytest.mark.parametrize("name", [name for name in ON_TWO if name.startswith("grpo")])
def test_rewards_are_those_of_the_users_functions(outcomes, name):
    *steps, _ = outcomes[name].metrics
    for line in steps:
        parts = [line[f"rewards/{function}/mean"] for function in ("shortness", "names_colour", "constant")]
        assert parts[0] < 0
        assert parts[2] == 2.5
        assert line["reward"] == pytest.approx(sum(parts), abs=1e-5)
        assert line["num_label_tokens"] <= 2 * 2 * 2 * 16


@pytest.mark.parametrize("name", ON_TWO)
def test_every_phase_of_the_plan_is_measured_and_states_are_as_planned(outcomes, name):
    report = {line["name"]: line for line in outcomes[name].report["planned_and_measured"]}
    phases = ["load, peak", "init, peak", "reference, peak", "forward, peak", "backward, peak", "step, peak"]
    phases += ["evaluation, peak"]
    phases += ["generate, peak", "score, peak", "generation, peak"] if name.startswith("grpo") else []
    for phase in phases:
        assert report[phase]["measured"] > 0
    for phase in ("init, peak", "step, peak", "save, peak"):
        assert report[phase]["error"] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("name", [name for name in ON_TWO if name.startswith("dpo")])
def test_a_rehearsed_task_peaks_as_it_really_does_on_cpu_ranks(files, outcomes, name):
    report = {line["name"]: line["measured"] for line in outcomes[name].report["planned_and_measured"]}
    family, options = ON_TWO[name]
    plan = planned(files / family, num_ranks=2, **options, **evaluated_of(options))
    peaks: dict[str, int] = {}
    for phase in rehearse(plan, estimate_of(plan, ())).rehearsed.phases:
        peaks[phase.name] = max(peaks.get(phase.name, 0), phase.peak_bytes)
    assert peaks.keys() == {"load", "init", "reference", "forward", "backward", "step", "evaluation", "save"}
    for phase in ("reference", "forward", "backward", "step", "evaluation"):
        assert peaks[phase] == pytest.approx(report[f"{phase}, peak"], rel=1e-3), phase


def test_a_stopped_run_goes_on_as_if_nothing_had_happened(outcomes):
    assert [line["step"] for line in outcomes["resumed"].metrics] == [1, 2, 3, 4, 5, 5]
    assert "eval_loss" in outcomes["resumed"].metrics[-1]
    assert outcomes["resumed"].losses == outcomes["unbroken"].losses
    assert outcomes["resumed"].report["steps"] == 5


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_killed_run_of_a_model_that_sees_goes_on_as_if_nothing_had_happened(files, tmp_path, method):
    setup = GRPO | {
        "seq_len": 48,
        "image_size": "56x56",
        "images_per_sample": 1,
        "zero_stage": "none",
        "method": method,
    }
    options = [f"--{name.replace('_', '-')}={value}" for name, value in setup.items()]
    trains = (*words(files, "qwen2_vl", GRPO), *LONG)
    started = ["--model", str(files / "qwen2_vl"), "--gpu", "cpu:1", *options, *trains]
    broken = launch(*started, "--output-dir", str(tmp_path / "run"), kill_in_step=4)
    assert broken.code == 128 + signal.SIGKILL, broken.err[-2000:]
    assert [place.name for place in (broken.folder / "checkpoints").glob("step-*[0-9]")] == ["step-00000002"]
    again = launch("--output-dir", str(tmp_path / "run"), "--resume")
    assert again.code == 0, again.err[-2000:]
    whole = train_here(planned(files / "qwen2_vl", num_ranks=1, **setup), tmp_path / "whole", *trains)
    forget_accelerate()
    same = ("step", "loss", "grad_norm", "learning_rate", "reward", "entropy", "completions/mean_length")
    found, expected = ([[line[name] for name in same] for line in run.metrics] for run in (again, whole))
    assert found == expected
    assert [line[0] for line in found] == [1, 2, 3, 4, 5]


def test_data_of_which_nothing_can_be_trained_on_is_refused_with_the_reason(files, tmp_path):
    plan = planned(files / "llama", num_ranks=1, zero_stage="none", **GRPO)
    given = ("--train-data", str(files / "prompts-seen.jsonl"), "--rewards", str(files / "rewards.py"))
    done = train_here(plan, tmp_path, *given)
    assert done.code == 1
    assert (
        "0 samples can be trained on, but one generation of the plan answers 1; the first that is left out: "
        in done.err
    )
    assert "images" in done.err.partition("left out: ")[2]


def launch(*arguments: str, kill_in_step: int | None = None) -> Outcome:
    """``vlmplan launch``, whose ranks get SIGKILL in the middle of a step."""
    folder = Path(arguments[arguments.index("--output-dir") + 1])
    process = start(["-c", "from vlmplan.cli import main; main()", "launch", *arguments], 1)
    deadline = time.monotonic() + 120
    while kill_in_step is not None and process.poll() is None and time.monotonic() < deadline:
        metrics = folder / "metrics.jsonl"
        if metrics.exists() and len(metrics.read_text().splitlines()) >= kill_in_step - 1:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    out, err = process.communicate(timeout=300)
    return Outcome(subprocess.CompletedProcess(process.args, process.returncode, out, err), folder, process.returncode)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", DPO | {"method": "full"}),
        ("llama", DPO | {"method": "lora", "reference": "adapter-off"}),
        ("llama", REWARD | {"method": "full"}),
        ("llama", KTO | {"method": "full"}),
        ("qwen2_vl", GRPO | {"method": "full", "reference": "copy", "seq_len": 48}),
    ],
)
def test_phases_are_as_planned_where_the_head_is_made_as_on_a_gpu(files, tmp_path, monkeypatch, family, options):
    """Elsewhere TRL scores every token of a row, and has copies of a tile that its Triton kernels do without."""
    make_head_as_on_gpus(monkeypatch.setattr)
    plan = planned(files / family, num_ranks=1, zero_stage="none", **options)
    given = (
        *words(files, family, options),
        "--max-steps",
        "2",
        *(("--temperature", "0.01") if "grpo" in options.values() else ()),
    )
    done = train_here(plan, tmp_path, *given)
    forget_accelerate()
    assert done.code == 0, done.err[-2000:]
    report = {line["name"]: line for line in done.report["planned_and_measured"] if line["unit"] == "bytes"}
    assert all(line.get("completions/clipped_ratio", 1) == 1 for line in done.metrics)  # no answer ends early
    for name, line in report.items():
        if line["planned"] is not None:
            assert line["error"] == pytest.approx(0, abs=0.04 if name == "generate, peak" else 0.015), name
    assert {"forward, peak", "backward, peak", "step, peak", "peak allocated"} <= set(report)
    assert ("reference, peak" in report) is (options["task"] != "reward")


def test_adapters_under_stage_3_take_on_two_ranks_what_is_planned_for_gpus(files, tmp_path):
    """Without Triton forward and backward of these take 1.6 times as much."""
    setups = {
        "dpo": DPO | {"optimizer": "lion"},
        "dpo in float32": DPO | {"precision": "fp32", "reference": "precomputed"},
        "grpo": GRPO | {"train_embeddings": True, "activation_checkpointing": True},
    }
    jobs = {
        name: (
            planned(files / "llama", num_ranks=2, zero_stage="3", method="lora", **options),
            (*words(files, "llama", options), "--max-steps", "2"),
        )
        for name, options in setups.items()
    }
    found = train_all(jobs, tmp_path, num_ranks=2, environment={HEAD_AS_ON_GPUS: "1"})
    for name, outcome in found.items():
        assert outcome.code == 0, (name, outcome.code)
        report = {line["name"]: line for line in outcome.report["planned_and_measured"]}
        for phase in ("forward", "backward"):
            assert report[f"{phase}, peak"]["error"] == pytest.approx(0, abs=0.015), (name, phase)
