"""``vlmplan diagnose``: what it takes, what it refuses, and what it says without a setup."""

import io
import json
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import vlmplan
from cli_calls import DONE, MENDABLE, USAGE, call
from documented_json import documented_keys
from vlmplan.cli.diagnose import diagnose
from vlmplan.cli.estimate import estimate

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.77 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.61 GiB is free. Process 977732 has 77.49 GiB memory in use. Of the allocated memory 75.16 GiB is "
    "allocated by PyTorch, and 1.27 GiB is reserved by PyTorch but unallocated."
)
"""modelscope/ms-swift#2010."""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.log").write_text(f"\x1b[31m 3%|█ | 129/4000 [0:10<1:00]\r{MESSAGE}\x1b[0m\n")
    return "train.log"


def test_a_message_alone_is_diagnosed(log: str):
    found = call("diagnose", log)
    assert found.code == DONE
    assert "True need: 0.89 GiB more than there was" in found.out
    assert "GPU memory ran out after 129 of 4,000 steps, on GPU 0" in found.out
    assert "With the setup beside it (--config FILE" in found.out
    document = call("diagnose", log, "--json").document
    assert (document["schema"], document["cause"], document["planned"]) == ("vlmplan.diagnosis/1", "true_need", None)
    assert document.keys() - {"schema"} == documented_keys("vlmplan.diagnosis/1")
    assert document["message"]["line"] == 2
    assert document["message"]["text"] == MESSAGE.partition(": ")[2]


def test_an_error_of_a_cuda_call_is_not_taken_for_one_of_the_allocator(tmp_path: Path):
    """LlamaFactory#9331: the message that torch makes of a call's error has no sizes, wherever it is whole."""
    path = tmp_path / "train.log"
    path.write_text("torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in\n")
    assert "Not torch's allocator of tensors, which says sizes" in call("diagnose", str(path)).out
    path.write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    assert "give the log from the traceback on" in call("diagnose", str(path)).out


def test_standard_input_is_a_log(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(MESSAGE.encode())))
    assert call("diagnose", "-").out.startswith("standard input:1: CUDA out of memory")


def test_a_log_without_a_message_is_answered_in_one_sentence(tmp_path: Path):
    path = tmp_path / "fine.log"
    path.write_text("{'loss': 0.5}\n")
    found = call("diagnose", str(path))
    assert found.code == MENDABLE
    assert found.err.count("\n") == 1
    assert "has no out-of-memory message; looked for" in found.err


@pytest.mark.sweep
def test_the_folder_of_a_run_stands_for_its_log_and_its_plan(log: str):
    setup = ("--model", "qwen2.5-0.5b", "--gpu", "t4", "--method", "lora")
    assert call("recommend", *setup, "--out", "run").code == DONE
    Path("run/run.log").write_text(Path(log).read_text())
    found, apart = call("diagnose", "run"), call("diagnose", "run/run.log", "--plan", "run/plan.json")
    assert "\nPlanned: qwen2.5-0.5b" in found.out
    assert (found.code, found.out) == (DONE, apart.out)
    assert vlmplan.diagnose("run").as_dict() == vlmplan.diagnose("run/run.log", plan="run/plan.json").as_dict()
    other = call("diagnose", "run", "--model", "qwen2.5-1.5b", "--gpu", "t4")
    assert "\nPlanned: qwen2.5-1.5b" in other.out


def test_a_folder_without_the_log_of_a_run_says_what_is_read(log: str):
    Path("runs/2-later").mkdir(parents=True)
    assert (
        "runs is a folder without run.log, which vlmplan launch keeps there; name the log itself"
        in call("diagnose", "runs").err
    )
    Path("runs/2-later/run.log").write_text("")
    found = call("diagnose", "runs")
    assert (found.code, "; runs/2-later has one" in found.err) == (MENDABLE, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seq-len", "12"), "--seq-len needs the model: give --model, --config or --plan"),
        (("--model", "qwen2.5-0.5b"), "--gpu NAME:COUNT is needed with a model"),
        (("--foreach-optimizer",), "--foreach-optimizer needs the model: give --model, --config or --plan"),
        (("--plan", "plan.json", "--gpu", "t4"), "--plan is the whole setup; --gpu does not go with it"),
    ],
)
def test_half_a_setup_is_refused(log: str, words: tuple[str, ...], said: str):
    found = call("diagnose", log, *words)
    assert found.code == USAGE
    assert said in found.err


def test_the_setup_takes_what_estimate_does_but_for_the_trainer_and_what_a_run_leaves():
    left_out = {"--for", "--save-every", "--keep-last", "--disk", "--scaling", "--compare", "--sample-lengths"}
    options = {name for one in estimate.params for name in one.opts} - left_out - {"--html", "--force"}
    assert options | {"--plan"} == {name for one in diagnose.params for name in one.opts} - {"log"}


@pytest.mark.sweep
def test_a_run_on_preferences_is_planned_as_estimate_plans_it(log: str):
    turns = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "because " * 40}]
    pair = {"prompt": turns[:1], "chosen": turns[1:], "rejected": [{"role": "assistant", "content": "no"}]}
    Path("pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 9)
    setup = ("--model", "smollm2-135m", "--gpu", "t4", "--task", "dpo", "--data", "pairs.jsonl")
    planned = call("diagnose", log, *setup, "--json").document["planned"]
    estimated = call("estimate", *setup, "--json").document
    assert planned["device_bytes"] == estimated["peak_device_bytes"]
    assert planned["device_bytes"] != call("estimate", *setup[:4], "--json").document["peak_device_bytes"]


def test_what_makes_a_task_fit_is_a_command_that_its_trainer_takes(log: str):
    """TRL checkpoints all layers or none."""
    setup = ("--model", "smolvlm-256m", "--gpu", "rtx-4090:2", "--task", "dpo")
    assert call("recommend", *setup, "--out", "plan").code == DONE
    Path(log).write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.03 "
        "GiB of which 1.00 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 500.00 MiB is "
        "reserved by PyTorch but unallocated."
    )
    found = call("diagnose", log, "--plan", "plan", "--json").document["to_fit"]
    assert found["changes"]
    mended = call(*shlex.split(found["command"])[1:], "--json")
    assert mended.code == DONE, mended.err
    assert mended.document["peak_device_bytes"] == found["device_bytes"]


HOSTILE = (
    *("CUDA out of memory. Tried to allocate 1.00 GiB ", "out of memory", "ried ", "-9", " 3%| 1/2 [", "\x1b[", "\r"),
    *(
        '  File "' + "x" * 399,
        "[rank0]: ",
        "Memory on the node ",
        "'loss' ",
        "\0",
        "Process 1 has 1.00 GiB memory in use. ",
    ),
)


@pytest.mark.sweep
@pytest.mark.parametrize("mark", HOSTILE)
def test_a_log_of_nothing_but_marks_is_answered_soon(mark: str, tmp_path: Path):
    """A megabyte; one of 64 MiB takes two seconds."""
    path = tmp_path / "hostile.log"
    path.write_text(mark * (2**20 // len(mark)) + "\nCUDA error: out of memory")
    started = time.process_time()
    assert call("diagnose", str(path)).code == DONE
    assert time.process_time() - started < 5
