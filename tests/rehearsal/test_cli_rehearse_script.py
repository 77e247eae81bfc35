"""What ``vlmplan rehearse ... -- COMMAND`` refuses, and what its answers say; scripts run in tests/trainer."""

import html
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_rehearsal import comparison

from cli_calls import call
from documented_json import undocumented
from vlmplan.answers.rehearsal import document
from vlmplan.catalog import load_catalog
from vlmplan.recipe import Recipe
from vlmplan.rehearsal import script
from vlmplan.timing import gpu_rates
from vlmplan.timing.rates import STEP_SECONDS
from vlmplan.units import duration_text

ANSWER: dict[str, Any] = {
    "schema": "vlmplan.rehearsed/1",
    "rank": 0,
    "num_ranks": 1,
    "num_steps": 3,
    "seconds": 2.0,
    "num_operations": 7,
    "checkpoint_bytes": None,
    "phases": [
        {
            "name": "forward",
            "step": 3,
            "resident_bytes": 2 * 512,
            "peak_bytes": 3 * 512,
            "host_peak_bytes": 0,
            "host_resident_bytes": 0,
            "seconds": 1.0,
            "flops": 5,
            "components": {
                "weights": 2 * 512,
                "gradients": 0,
                "optimizer_states": 0,
                "activations": 512,
                "logits": 0,
                "communication_buffers": 0,
                "temporaries": 0,
            },
            "largest": [],
        }
    ],
    "collectives": [],
    "work": [
        {
            "phase": "forward",
            "step": 3,
            "products": [["bfloat16", 10**12, 10**6, 2]],
            "attention_flops": {"bfloat16": 10**11},
            "moved_bytes": 10**9,
            "copied_bytes": 0,
            "num_kernels": 10,
        }
    ],
    "events": {"storages": [1, 2, 2], "bytes": [1024, 512, -512]},
    "marks": [[0, "forward", 3, 3]],
    "streams": [],
    "origins": {
        "kinds": [{"component": "weights", "maker": "", "operation": "", "shape": [], "dtype": "", "phase": "forward"}],
        "storages": [1, 2],
        "places": [0, 0],
    },
    "unknown_values": [{"file": "/home/me/train.py", "line": 31, "what": "decision", "count": 2}],
    "bounded_shapes": [{"file": "/home/me/train.py", "line": 40, "what": "nonzero", "count": 1}],
    "notes": ["a note of the script"],
    "host_rss_bytes": 2**30,
    "allocator_settings": [],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answered(monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]) -> None:
    program = f"import sys; sys.stdin.read(); print({json.dumps(json.dumps(answer))})"
    monkeypatch.setattr(script, "COMMAND", ("-c", program))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--micro-batch", "2", "--", "python", "x.py"), "the script decides how it trains, so --micro-batch cannot"),
        (("--no-fsdp", "--", "python", "x.py"), "the script decides how it trains, so --no-fsdp cannot"),
        (("--lora-dropout", "0", "--", "python", "x.py"), "the script decides how it trains, so --lora-dropout cannot"),
        (("--assume", "x.py:1", "--", "python", "x.py"), "--assume is x.py:1; it must be FILE:LINE=VALUE"),
        (("--assume", "x.py:1=[1]", "--", "python", "x.py"), "True, False or a number"),
        (("--rank", "2", "--", "python", "x.py"), "--rank is 2; the ranks of --gpu are 0 to 1"),
        (("--steps", "2", "--", "python", "x.py"), "--steps is 2; 3 or more are needed"),
        (("plan.json",), "plan.json is no command that trains; a plan is given as --plan FILE"),
        (("--plan", "plan.json", "--", "python", "x.py"), "a script's rehearsal has no plan: leave out --plan"),
        (("--model", "qwen2-vl-2b", "--assume", "x.py:1=True"), "--assume is of a script: give its command behind --"),
    ],
)
def test_what_is_wrong_is_one_sentence(words: tuple[str, ...], said: str):
    done = call("rehearse", "--gpu", "h100-sxm:2", *words)
    assert done.code == 1
    assert said in " ".join(done.err.split())


def test_what_the_script_raises_is_said(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, {"error": "train.py:3: ValueError: no data"})
    done = call("rehearse", "--gpu", "h100-sxm:1", "--", "python", "train.py")
    assert done.code == 1
    assert "this script cannot be rehearsed: train.py:3: ValueError: no data" in " ".join(done.err.split())


def test_the_document_has_workspaces_and_who_decided_unknown(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, ANSWER)
    found = call("rehearse", "--gpu", "h100-sxm:1", "--json", "--", "python", "train.py").document
    workspaces = found["components_at_peak"]["temporaries"]
    assert workspaces > 0
    assert found["peak_allocated_bytes"] == 3 * 512 + workspaces == sum(found["components_at_peak"].values())
    assert found["phases"][0]["resident_bytes"] == 2 * 512 + workspaces
    assert found["command"] == ["python", "train.py"]
    assert found["unknown_values"] == ANSWER["unknown_values"]


def test_the_document_has_every_key_of_that_of_a_plan(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, ANSWER)
    found = call("rehearse", "--gpu", "h100-sxm:1", "--json", "--", "python", "train.py").document
    of_plan = document(comparison())
    assert of_plan.keys() <= found.keys()
    assert undocumented(found) == set()
    assert of_plan["gpu"].keys() == found["gpu"].keys()
    assert of_plan["phases"][0].keys() == found["phases"][0].keys()
    assert found["relative_error"] is None


def test_seconds_are_those_of_the_counted_operations_at_the_rates_of_a_plan(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, ANSWER)
    words = ("--gpu", "h100-sxm:1", "--", "python", "train.py")
    found = call("rehearse", "--json", *words).document
    speed = gpu_rates(load_catalog().gpu("h100-sxm"), Recipe())
    assert speed is not None
    products = 2 * (1e12 / speed.matmul_flops_per_second + speed.ramp_seconds)
    others = (10 - 2) * speed.kernel_ramp_seconds
    forward = products + 1e11 / speed.attention_flops_per_second + 1e9 / speed.bytes_per_second + others
    assert found["step_seconds_by_part"]["forward"] == pytest.approx(forward)
    assert found["step_seconds"] == pytest.approx(forward + STEP_SECONDS.expected)
    fast, slow = found["step_seconds_range"]
    assert fast < found["step_seconds"] < slow
    assert f"in {duration_text(found['step_seconds'])} by the roofline" in call("rehearse", *words).out


def test_a_card_of_unknown_speed_has_no_seconds(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, ANSWER)
    found = call("rehearse", "--gpu", "cpu:1", "--json", "--", "python", "train.py").document
    assert found["step_seconds"] is None


def test_a_page_and_a_picture_have_the_phases_and_the_command(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, ANSWER)
    words = ("--gpu", "h100-sxm:1", "--steps", "4", "--longest", "--assume", "train.py:31=True")
    done = call("rehearse", *words, "--html", "r.html", "--svg", "r.svg", "--", "python", "train.py", "a b")
    assert done.code == 0, done.err
    page = Path("r.html").read_text(encoding="utf-8")
    assert "python train.py 'a b' on 1 x H100 SXM5 80GB" in html.unescape(page)
    asked = "vlmplan rehearse --gpu h100-sxm:1 --steps 4 --assume train.py:31=True --longest -- python train.py 'a b'"
    assert asked in html.unescape(page)
    assert "<svg" in page
    assert "forward 3" in Path("r.svg").read_text(encoding="utf-8")
    again = call("rehearse", *words, "--html", "r.html", "--", "python", "train.py")
    assert (again.code, "r.html" in again.err) == (1, True)


def test_the_text_says_how_to_take_the_other_way_and_what_is_a_bound(monkeypatch: pytest.MonkeyPatch):
    answered(monkeypatch, ANSWER)
    text = " ".join(call("rehearse", "--gpu", "h100-sxm:1", "--", "python", "train.py").out.split())
    assert "--assume 'train.py:31=True' takes the other way" in text
    assert "train.py:40: the size of nonzero is an upper bound" in text
    assert "note: a note of the script" in text


def test_memory_is_limited_and_the_option_that_allows_more_is_named():
    done = call("rehearse", "--gpu", "cpu:1", "--max-rehearsal-ram", "0.001", "--", "python", "x.py")
    assert done.code == 1
    assert "give --max-rehearsal-ram" in " ".join(done.err.split())


@pytest.mark.sweep
def test_time_is_limited_and_what_the_script_started_ends_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    child = f"import time; time.sleep(1); open({str(tmp_path / 'late')!r}, 'w')"
    program = f"import subprocess, sys; subprocess.run([{sys.executable!r}, '-c', {child!r}])"
    monkeypatch.setattr(script, "COMMAND", ("-c", program))
    done = call("rehearse", "--gpu", "cpu:1", "--max-minutes", "0.005", "--", "python", "x.py")
    assert done.code == 1
    assert "give --max-minutes" in " ".join(done.err.split())
    time.sleep(1.1)
    assert not (tmp_path / "late").exists()
