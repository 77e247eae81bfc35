"""Whole runs of the trainer on CPU ranks under the real DeepSpeed: they learn, agree, go on, and are as planned."""

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_adam_build import can_compile, cheap_build
from killed_trainer import KILLED_CHECKPOINT, KILLED_STEP, MOMENTS, STEP
from safetensors.torch import load_file
from trainer_runs import Outcome, planned, start, train, train_all, train_here
from transformers import AutoModelForImageTextToText

from vlmplan.plan import Plan, write_plan
from vlmplan_trainer.data.dummy import coloured_png
from vlmplan_trainer.engines.optimizers import COMPILING
from vlmplan_trainer.models.tiny import write_tiny_model

NUM_STEPS = 6
KILLED = Path(__file__).parent / "killed_trainer.py"
WORDS = ("--dummy-data", "48", "--learning-rate", "1e-2", "--max-steps", str(NUM_STEPS))
QUICK = (*WORDS, "--measured-steps", "1")
"""Following every storage takes as long as a step itself."""
RUNS = [
    *(("llama", "full", stage) for stage in ("none", *"0123")),
    *(("qwen2_vl", "lora", stage) for stage in ("none", *"23")),
    *(("qwen2_vl", "qlora", stage) for stage in "12"),
]
"""What every change is tried with; ``every_run.py`` beside this file tries all that a plan may combine."""
STARTED_AGAIN = [("qwen2_vl", "lora", "3"), ("qwen2_vl", "qlora", "2")]
"""Runs whose adapter another one starts from."""

OFFLOADED = {"offload_optimizer": "cpu"}
LLAMA = ("llama", "full")
STOPPED = (
    *("none-stopped", "2-stopped", "2-offloaded-stopped", "fsdp-stopped"),
    *("fsdp-groups-stopped", "3-dora-stopped", "2-adafactor-stopped"),
)
RESUMED = {f"{name}-resumed": name for name in STOPPED}
"""In whose folder each goes on."""
IN_EVERY_RUN = {
    *(
        "llama-full-none",
        "none-mixed",
        "llama-full-2",
        "llama-full-3",
        "qwen2_vl-lora-3",
        "qwen2_vl-lora-3-again",
        "fp16-overflows",
        "llama-full-fsdp",
    ),
    *("2-stopped", "2-stopped-resumed", "unbroken"),
}
MIXED = ("--learning-rate", "1e-2", "--max-steps", "3")
LONG = ("--dummy-data", "96", "--learning-rate", "1e-2", "--max-steps", "10", "--save-every", "2", "--keep-last", "2")
sweep = pytest.mark.sweep
needs_compiler = pytest.mark.skipif(not can_compile(), reason="no C++ compiler or no ninja to build cpu_adam with")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {family: write_tiny_model(folder / family, family) for family in ("llama", "qwen2_vl")}


def plan_of(models: dict[str, Path], family: str, method: str, stage: str, num_ranks: int = 2, **options) -> Plan:
    fields = {"method": method, "zero_stage": stage, "num_samples": 48, "global_batch": 8, "micro_batch": 2}
    return planned(models[family], num_ranks=num_ranks, **{**fields, **options})


class Runs:
    """Outcomes by name. Those of every run of the tests share their processes, and so do those of sweeps."""

    def __init__(self, models: dict[str, Path], folders: pytest.TempPathFactory) -> None:
        self._models, self._folders = models, folders

    def __getitem__(self, name: str) -> Outcome:
        return (self._of_every_run if name in IN_EVERY_RUN else self._of_sweeps)[name]

    @cached_property
    def _of_every_run(self) -> dict[str, Outcome]:
        return self._trained(is_wanted=lambda name: name in IN_EVERY_RUN, environment={})

    @cached_property
    def _of_sweeps(self) -> dict[str, Outcome]:
        environment = cheap_build(self._folders.mktemp("kernel")) if can_compile() else {}
        return self._trained(is_wanted=lambda name: name not in IN_EVERY_RUN, environment=environment)

    def _trained(self, is_wanted: Callable[[str], bool], environment: Mapping[str, str]) -> dict[str, Outcome]:
        folder = self._folders.mktemp("runs")
        jobs = {name: job for name, job in self._jobs(folder).items() if is_wanted(name)}
        stop_after = dict.fromkeys(RESUMED.values(), NUM_STEPS // 3)
        environment = {"PRETEND_FP16": "1", **environment}
        return train_all(jobs, folder, num_ranks=2, places=RESUMED, stop_after=stop_after, environment=environment)

    def _jobs(self, folder: Path) -> dict[str, tuple[Plan, Sequence[str]]]:
        models = self._models
        jobs = {"-".join(run): (plan_of(models, *run), WORDS) for run in RUNS}
        for run in STARTED_AGAIN:
            adapter = folder / "-".join(run) / "run" / "adapter"
            unchanged = ("--dummy-data", "8", "--learning-rate", "0", "--adapter", str(adapter), "--merge-adapters")
            jobs["-".join(run) + "-again"] = (plan_of(models, *run), unchanged)
        fp16 = overflowing(plan_of(models, *LLAMA, "2", precision="fp16"))
        jobs |= {
            "fp32": (plan_of(models, *LLAMA, "2", precision="fp32"), QUICK),
            "fp16-0": (plan_of(models, *LLAMA, "0", precision="fp16"), QUICK),
            "fp16-overflows": (fp16, (*QUICK, "--max-steps", "2")),
            "unbroken": (plan_of(models, *LLAMA, "2"), LONG),
        }
        sharded = {"fsdp": True, "zero_stage": None}
        jobs["llama-full-fsdp"] = (plan_of(models, *LLAMA, "none", **sharded), WORDS)
        jobs["padding-free-fsdp"] = (plan_of(models, *LLAMA, "none", batching="padding-free", **sharded), WORDS)
        on_host = {"offload_params": "cpu", "offload_optimizer": "cpu"}
        jobs["offloaded-fsdp"] = (plan_of(models, *LLAMA, "none", **on_host, **sharded), WORDS)
        waiting = plan_of(models, "qwen2_vl", "lora", "none", micro_batch=1, sync_each_batch=False, **sharded)
        jobs["qwen2_vl-lora-fsdp"] = (waiting, WORDS)
        mixed = ("--train-data", str(some_with_images(folder / "mixed")), *MIXED)
        jobs["none-mixed"] = (plan_of(models, "qwen2_vl", "full", "none", micro_batch=1), mixed)
        whole = {"micro_batch": 1, "precision": "fp32"}
        jobs["3-mixed"] = (plan_of(models, "qwen2_vl", "full", "3", **whole), mixed)
        jobs["fsdp-mixed"] = (plan_of(models, "qwen2_vl", "full", "none", **whole, **sharded), mixed)
        jobs["2-no-images"] = (plan_of(models, "qwen2_vl", "full", "2", images_per_sample=0), WORDS)
        if can_compile():
            jobs["3-offloaded"] = (plan_of(models, *LLAMA, "3", **OFFLOADED, offload_params="cpu"), QUICK)
        grouped = plan_of(models, "llama", "lora", "none", loraplus_lr_ratio=4, **sharded)
        turned = plan_of(models, "llama", "lora", "3", use_dora=True)
        factored = plan_of(models, *LLAMA, "2", optimizer="adafactor", precision="bf16-pure")
        jobs |= {"fsdp-groups": (grouped, QUICK), "3-dora": (turned, QUICK), "2-adafactor": (factored, QUICK)}
        full = plan_of(models, *LLAMA, "none", **sharded)
        for name, plan in (("fsdp", full), ("fsdp-groups", grouped), ("3-dora", turned), ("2-adafactor", factored)):
            jobs[f"{name}-stopped"] = (plan, (*QUICK, "--monitor", "csv"))
            jobs[f"{name}-stopped-resumed"] = (plan, (*QUICK, "--monitor", "csv", "--resume"))
        for name, options in (("none-stopped", {}), ("2-stopped", {}), ("2-offloaded-stopped", OFFLOADED)):
            if options and not can_compile():
                continue
            followed = plan_of(models, *LLAMA, name.partition("-")[0], **options)
            jobs[name] = (followed, (*QUICK, "--monitor", "csv"))
            jobs[f"{name}-resumed"] = (followed, (*QUICK, "--monitor", "csv", "--resume"))
        return jobs


@pytest.fixture(scope="module")
def outcomes(models, tmp_path_factory) -> Runs:
    return Runs(models, tmp_path_factory)


def some_with_images(folder: Path) -> Path:
    """Chats of which every fifth has an image: most micro batches of a rank have none."""
    folder.mkdir()
    (folder / "red.png").write_bytes(coloured_png((255, 0, 0), (56, 56)))
    lines = []
    for number in range(48):
        image = [] if number % 5 else [{"type": "image", "image": "red.png"}]
        asked = {"role": "user", "content": [*image, {"type": "text", "text": f"What is {number}?"}]}
        lines.append(json.dumps({"messages": [asked, {"role": "assistant", "content": f"A number: {number}"}]}))
    (folder / "chats.jsonl").write_text("\n".join(lines))
    return folder / "chats.jsonl"


def overflowing(plan: Plan) -> Plan:
    """The plan with a loss scale at first that takes gradients of the tiny Llama past the largest fp16, 65,504."""
    config = dict(plan.ds_config or {})
    config["fp16"] = {**config["fp16"], "initial_scale_power": 24, "hysteresis": 1}
    return replace(plan, ds_config=config)


def swept(runs: Sequence[tuple[str, ...]]) -> list[Any]:
    """The runs as parameters of a test, in sweeps those that are not of every run."""
    return [pytest.param(run, marks=[] if "-".join(run) in IN_EVERY_RUN else sweep) for run in runs]


def assert_learns(outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.code
    assert len(outcome.losses) == NUM_STEPS
    assert outcome.losses[-1] < outcome.losses[0] - 0.3


@pytest.mark.parametrize("run", swept(RUNS), ids="-".join)
def test_the_loss_falls_under_every_stage(outcomes, run):
    assert_learns(outcomes["-".join(run)])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["full", "qlora", pytest.param("lora", marks=sweep)])
def test_the_loss_falls_without_deepspeed(models, tmp_path, method):
    assert_learns(train_here(plan_of(models, "qwen2_vl", method, "none", 1), tmp_path, *WORDS))


@pytest.mark.parametrize(
    ("family", "method", "stages"),
    [
        ("llama", "full", ("none", *"23", "fsdp")),
        pytest.param("llama", "full", "0123", marks=sweep),
        pytest.param("qwen2_vl", "lora", ("none", *"23", "fsdp"), marks=sweep),
        pytest.param("qwen2_vl", "qlora", "12", marks=sweep),
    ],
)
def test_all_stages_take_the_same_steps(outcomes, family, method, stages):
    first, *others = (outcomes[f"{family}-{method}-{stage}"].losses for stage in stages)
    for losses in others:
        assert losses == pytest.approx(first, rel=0.004)  # bf16 has 8 bits: 1/256


@pytest.mark.long
@sweep
@pytest.mark.parametrize("name", ["padding-free-fsdp", "offloaded-fsdp"])
def test_fsdp2_takes_the_same_steps_without_padding_and_from_the_host(outcomes, name):
    assert outcomes[name].losses == pytest.approx(outcomes["llama-full-none"].losses, rel=0.004)


@pytest.mark.parametrize("stage", ["none", 2, 3, "fsdp", pytest.param(0, marks=sweep), pytest.param(1, marks=sweep)])
def test_full_training_takes_the_bytes_that_were_planned(outcomes, stage):
    outcome = outcomes[f"llama-full-{stage}"]
    # A weight that a thread of transformers' reads may go a moment later, and a few are a tenth of this model.
    assert -0.15 < outcome.error_of("load, peak") < (0.03 if stage == 3 else 0.001)
    for name in ("init, peak", "step, peak", "peak allocated"):
        assert abs(outcome.error_of(name)) < 0.005, name


@sweep
def test_a_vision_tower_without_gradients_takes_the_bytes_that_were_planned(outcomes):
    for name in ("step, peak", "peak allocated"):
        assert abs(outcomes["2-no-images"].error_of(name)) < 0.005, name


def assert_learnt_alike(found: Outcome, same: Outcome, *, loss_error: float, norm_error: float) -> None:
    assert found.code == same.code == 0, (found.code, same.err)
    assert found.losses[-1] < found.losses[0]
    assert found.losses == pytest.approx(same.losses, rel=loss_error)
    norms = [line["grad_norm"] for line in same.metrics]
    assert [line["grad_norm"] for line in found.metrics] == pytest.approx(norms, rel=norm_error)


def test_ddp_learns_what_one_rank_does_though_a_rank_may_have_no_image_for_the_vision_tower(models, outcomes, tmp_path):
    alone = plan_of(models, "qwen2_vl", "full", "none", 1, micro_batch=1)
    same = train_here(alone, tmp_path, "--train-data", str(some_with_images(tmp_path / "mixed")), *MIXED)
    # sums of bf16 products in another order
    assert_learnt_alike(outcomes["none-mixed"], same, loss_error=0.001, norm_error=0.01)


@sweep
@pytest.mark.parametrize("name", ["3-mixed", "fsdp-mixed"])
def test_ranks_that_gather_weights_do_not_wait_for_a_rank_without_images(models, outcomes, tmp_path, name):
    alone = plan_of(models, "qwen2_vl", "full", "none", 1, micro_batch=1, precision="fp32")
    same = train_here(alone, tmp_path, "--train-data", str(some_with_images(tmp_path / "mixed")), *MIXED)
    assert_learnt_alike(outcomes[name], same, loss_error=1e-4, norm_error=1e-3)


@sweep
@pytest.mark.parametrize("name", ["fp32", "fp16-0"])
def test_other_precisions_take_the_steps_of_bf16(outcomes, name):
    assert_learns(outcomes[name])
    assert outcomes[name].losses == pytest.approx(outcomes["llama-full-2"].losses, rel=0.008)  # 2 roundings of 1/256
    assert not any(line["is_skipped"] for line in outcomes[name].metrics)


def test_a_step_whose_fp16_gradients_overflow_is_skipped_and_says_so(outcomes):
    found = outcomes["fp16-overflows"]
    assert found.code == 0, found.code
    assert [(line["is_skipped"], line["grad_norm"]) for line in found.metrics] == [(True, None)] * 2
    assert "skipped: gradients overflowed" in found.out


@sweep
@needs_compiler
def test_offloading_does_not_change_what_is_learnt(outcomes):
    found = outcomes["3-offloaded"]
    assert_learns(found)
    assert found.losses == pytest.approx(outcomes["llama-full-3"].losses, rel=0.004)


@sweep
@needs_compiler
def test_a_run_says_that_it_compiles_where_nobody_has(outcomes):
    assert outcomes["3-offloaded"].out.count(COMPILING) == 1


@sweep
@needs_compiler
def test_what_cpu_ranks_offload_to_themselves_is_not_held_against_the_plan(outcomes):
    lines = {line["name"]: line for line in outcomes["3-offloaded"].report["planned_and_measured"]}
    assert lines["peak allocated"]["planned"] is None
    assert lines["peak allocated"]["measured"] > 0


def test_a_run_leaves_a_model_that_transformers_loads(outcomes):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = outcomes["llama-full-3"].folder / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder) is not None
    assert sum(parameter.numel() for parameter in model.parameters()) > 100_000


def test_adapters_load_onto_the_model_they_were_trained_on(outcomes, models):
    from peft import PeftModel

    base = AutoModelForImageTextToText.from_pretrained(models["qwen2_vl"])
    adapted = PeftModel.from_pretrained(base, str(outcomes["qwen2_vl-lora-3"].folder / "adapter"))
    trained = [tensor for name, tensor in adapted.named_parameters() if "lora_B" in name]
    assert trained
    assert any(bool(tensor.abs().sum() > 0) for tensor in trained)


@pytest.mark.parametrize("run", swept(STARTED_AGAIN), ids="-".join)
def test_a_run_starts_from_an_adapter_and_without_a_learning_rate_leaves_it_as_it_was(outcomes, run):
    first, again = (outcomes["-".join(run) + end] for end in ("", "-again"))
    before, after = (load_file(outcome.folder / "adapter" / "adapter_model.safetensors") for outcome in (first, again))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("run", swept(STARTED_AGAIN), ids="-".join)
def test_a_merged_model_is_the_unquantised_one_plus_what_the_adapter_adds(outcomes, models, run):
    folder = outcomes["-".join(run) + "-again"].folder
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    base, merged = (
        AutoModelForImageTextToText.from_pretrained(place) for place in (models["qwen2_vl"], folder / "merged")
    )
    merged_weights = dict(merged.named_parameters())
    changed = 0
    for name, weight in base.named_parameters():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        delta = 0.0
        if f"{key}.lora_A.weight" in adapter:
            down, up = (adapter[f"{key}.lora_{matrix}.weight"].float() for matrix in "AB")
            delta = config["lora_alpha"] / config["r"] * up @ down
            changed += 1
        assert torch.allclose(merged_weights[name].float(), weight.float() + delta, atol=0.004)  # bf16 below 1
    assert changed > 10


# -- going on --------------------------------------------------------------------------------------------------------


def test_a_signal_to_one_rank_ends_all_with_a_checkpoint(outcomes):
    found = outcomes["2-stopped"]
    assert found.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM after step" in found.out


@pytest.mark.parametrize(
    ("name", "unbroken", "tolerance"),
    [
        ("2-stopped-resumed", "llama-full-2", 0.0),
        pytest.param("none-stopped-resumed", "llama-full-none", 0.0, marks=sweep),
        pytest.param("fsdp-stopped-resumed", "llama-full-fsdp", 0.0, marks=sweep),
        pytest.param("fsdp-groups-stopped-resumed", "fsdp-groups", 0.0, marks=sweep),
        pytest.param("3-dora-stopped-resumed", "3-dora", 0.0, marks=sweep),
        pytest.param("2-adafactor-stopped-resumed", "2-adafactor", 0.0, marks=sweep),
        # The kernel on the host rounds in another order than torch's.
        pytest.param("2-offloaded-stopped-resumed", "llama-full-2", 0.004, marks=[sweep, needs_compiler]),
    ],
)
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(outcomes, name, unbroken, tolerance):
    found = outcomes[name]
    assert found.code == 0, found.code
    assert found.losses == pytest.approx(outcomes[unbroken].losses, rel=tolerance, abs=0)
    with (found.folder / "monitor" / "csv" / "Train_loss.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["step", "loss"]
    assert [(int(step), float(loss)) for step, loss in rows] == list(enumerate(found.losses, 1))


def test_a_run_that_goes_on_measures_what_its_checkpoint_brought(outcomes):
    lines = {line["name"]: line for line in outcomes["2-stopped-resumed"].report["planned_and_measured"]}
    assert lines["resume, peak"]["measured"] > lines["init, peak"]["measured"]
    for phase in ("resume", "forward", "step"):
        assert lines[f"{phase}, peak"]["error"] == pytest.approx(0, abs=0.03)


def killed(plan: Plan, folder: Path, moment: str) -> None:
    """A run of which a rank is killed without warning."""
    write_plan(plan, folder / "plan.json", force=True)
    run, num_ranks = folder / "run", plan.hardware.num_gpus
    arguments = [str(KILLED), moment, "--plan", str(folder / "plan.json"), "--output-dir", str(run), *LONG]
    process = start(arguments, num_ranks)
    said = process.communicate(timeout=600)
    assert process.returncode == (-signal.SIGKILL if num_ranks == 1 else 1), said
    num_steps = len((run / "metrics.jsonl").read_text().splitlines())
    unfinished = (run / "checkpoints" / f"{KILLED_CHECKPOINT}.unfinished").exists()
    assert (num_steps, unfinished) == ((KILLED_STEP - 1, False) if moment == STEP else (4, True)), said


@sweep
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_without_deepspeed_goes_on_as_if_nothing_had_happened(models, tmp_path, moment):
    plan = plan_of(models, "llama", "full", "none", 1)
    killed(plan, tmp_path / "killed", moment)
    done = train_here(plan, tmp_path / "killed", *LONG, "--resume")
    assert done.losses == train_here(plan, tmp_path / "unbroken", *LONG).losses
    assert len(list((done.folder / "checkpoints").glob("step-*"))) == 2


@pytest.mark.long
@sweep
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(models, outcomes, tmp_path, moment):
    plan = plan_of(models, "llama", "full", "2")
    killed(plan, tmp_path, moment)
    done = train(plan, tmp_path, *LONG, "--resume")
    assert done.losses == outcomes["unbroken"].losses
    assert len(list((done.folder / "checkpoints").glob("step-*"))) == 2


@pytest.mark.sweep
@pytest.mark.parametrize(("num_ranks", "micro_batch"), [(1, 4), pytest.param(4, 1, marks=sweep)])
def test_a_run_goes_on_with_another_number_of_ranks(models, outcomes, tmp_path, num_ranks, micro_batch):
    unbroken = outcomes["unbroken"]
    folder = tmp_path / "others" / "run"
    shutil.copytree(unbroken.folder, folder)
    (folder / "checkpoints" / "step-00000010" / "complete.json").unlink()  # as if killed before the end
    plan = plan_of(models, "llama", "full", "2", num_ranks, micro_batch=micro_batch)
    done = train_all({"others": (plan, (*LONG, "--resume"))}, tmp_path, num_ranks=num_ranks)["others"]
    assert [line["step"] for line in done.metrics] == list(range(1, 11))
    assert done.losses[-2:] == pytest.approx(unbroken.losses[8:], rel=0.004)


@pytest.mark.sweep
def test_a_checkpoint_with_a_file_missing_is_not_trusted(models, tmp_path):
    plan = plan_of(models, "llama", "full", "none", 1)
    done = train_here(plan, tmp_path, *WORDS, "--save-every", "3")
    newest = max((done.folder / "checkpoints").iterdir())
    (newest / "state.pt").write_bytes(b"half")
    again = train_here(plan, tmp_path, *WORDS, "--resume")
    assert [line["step"] for line in again.metrics] == list(range(1, NUM_STEPS + 1))
    assert again.out.count(f"/{NUM_STEPS}  loss") == NUM_STEPS - 3


def test_resume_without_a_checkpoint_says_so(models, tmp_path):
    refused = train_here(plan_of(models, "llama", "full", "none", 1), tmp_path, *WORDS, "--resume")
    assert refused.code == 1
    assert refused.err.strip().splitlines()[-1].startswith("vlmplan_trainer: --resume:")
    assert "Traceback" not in refused.err


def test_a_plan_for_two_ranks_refuses_to_run_on_one(models, tmp_path):
    refused = train_here(plan_of(models, "llama", "full", "2"), tmp_path, *WORDS)
    assert refused.code == 1
    assert "the plan is for 2 GPUs, but 1 rank was started" in refused.err


def test_the_report_is_json_with_planned_and_measured_figures(outcomes):
    report = json.loads((outcomes["llama-full-2"].folder / "report.json").read_text())
    assert report["schema"] == "vlmplan.report/1"
    assert report["steps"] == NUM_STEPS
    assert {"init, peak", "forward, peak", "backward, peak", "step, peak", "peak allocated"} <= {
        line["name"] for line in report["planned_and_measured"]
    }
    assert os.path.getsize(outcomes["llama-full-2"].folder / "metrics.jsonl") > 0
