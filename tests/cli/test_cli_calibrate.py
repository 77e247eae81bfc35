"""Calibrations on the command line: used and named by estimates of that GPU, and left out where that is asked."""

import pytest

from calibrations import calibration, kept
from cli_calls import call, refusal, says
from fake_nvml import FakeCard, fake_driver

GPU = "rtx-4090"
SETUP = ("--model", "qwen2.5-0.5b", "--method", "lora", "--seq-len", "128")
ESTIMATE = ("estimate", *SETUP, "--gpu", GPU)
FAST = {"matmul_bf16": 1.9e14, "operation_seconds": 1e-7, "context_bytes": 400 * 2**20}


def without_reference(document):
    return {key: value for key, value in document.items() if key != "calibration"}


@pytest.mark.sweep
def test_an_estimate_uses_the_calibration_of_its_gpu_and_says_so(tmp_path):
    before = call(*ESTIMATE, "--json").document
    kept(tmp_path / "config", calibration(GPU, **FAST))
    after = call(*ESTIMATE, "--json").document
    assert before["calibration"] is None
    assert after["calibration"] == {
        "gpu": GPU, "device": "a card", "date": "2026-11-24", "num_ranks": 1, "versions": {"torch": "2.13.0"}
    }  # fmt: skip
    assert after["step_seconds"] < before["step_seconds"]
    assert before["peak_device_bytes"] - after["peak_device_bytes"] == 100 * 2**20
    assert after["phases"] == before["phases"]
    left_out = call(*ESTIMATE, "--json", "--no-calibration").document
    assert left_out == before
    printed = " ".join(call(*ESTIMATE).out.split())
    says(printed, "measured: seconds and fixed bytes by a calibration of 2026-11-24 on a card (torch 2.13.0)")
    assert "measured:" not in call(*ESTIMATE, "--no-calibration").out


def test_other_gpus_know_nothing_of_it(tmp_path):
    other = ("estimate", *SETUP, "--gpu", "rtx-3090", "--json")
    before = call(*other).document
    path = kept(tmp_path / "config", calibration(GPU, **FAST))
    path.write_text("{")  # nor does it matter that it is broken
    assert call(*other).document == before
    says(refusal(*ESTIMATE), str(path), "is not JSON", "--no-calibration")


def test_a_recommendation_uses_it_too(tmp_path):
    search = ("recommend", *SETUP, "--gpu", GPU)
    before = call(*search, "--json").document["plans"][0]["estimate"]
    kept(tmp_path / "config", calibration(GPU, **FAST))
    after = call(*search, "--json").document["plans"][0]["estimate"]
    assert after["step_seconds"] / after["recipe"]["global_batch"] < (
        before["step_seconds"] / before["recipe"]["global_batch"]
    )
    assert after["calibration"]["date"] == "2026-11-24"
    assert call(*search, "--json", "--no-calibration").document["plans"][0]["estimate"] == before
    says(" ".join(call(*search).out.split()), "by a calibration of 2026-11-24 on a card")


def test_a_rate_far_above_the_data_sheet_is_refused(tmp_path):
    path = kept(tmp_path / "config", calibration(GPU, matmul_bf16=1e15))
    says(refusal(*ESTIMATE), str(path), "1e+15", "1.5 times", "--no-calibration")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--gpu", "rtx-4090"), ("rtx-4090", "local and cpu:RANKS")),
        (("--gpu", "cpu:0"), ("cpu:0",)),
        (("--out", "here.json", "--gpu", "cpu:1"), ("here.json exists already", "--force")),
    ],
)
def test_what_cannot_be_measured_is_refused(words, parts, tmp_path):
    (tmp_path / "here" / "here.json").write_text("{}")
    says(refusal("calibrate", *words), *parts)


def test_calibrate_names_what_is_missing_without_torch(monkeypatch):
    monkeypatch.setattr("vlmplan.calibrating.installed_version", lambda name: None)
    says(refusal("calibrate", "--gpu", "cpu:1"), "torch and transformers", "not installed here", "pip install")


def test_this_machines_gpu_has_its_calibration_known_to_the_catalog_or_not(monkeypatch, tmp_path):
    local = ("estimate", *SETUP, "--gpu", "local", "--json")
    fake_driver(
        monkeypatch, [FakeCard(name="NVIDIA GeForce RTX 4090", total_mib=24564, device_id="2684", capability=(8, 9))]
    )
    kept(tmp_path / "config", calibration(GPU, **FAST))
    assert call(*local).document["calibration"]["gpu"] == GPU
    assert call(*local, "--no-calibration").document["calibration"] is None
    fake_driver(monkeypatch, [FakeCard(name="Card of Tomorrow", total_mib=40960, device_id="FFFF")])
    assert call(*local).document["step_seconds"] is None
    speeds = {"matmul_bf16": 3e14, "attention_sdpa_bf16": 1e14, "memory_bandwidth": 2e12}
    kept(tmp_path / "config", calibration("card-of-tomorrow", **speeds))
    assert call(*local).document["step_seconds"] > 0


@pytest.mark.parametrize(
    "command",
    [
        ("estimate", "--compare", "precision"),
        pytest.param(("explain", "stage", "--zero-stage", "2"), marks=pytest.mark.sweep),
        pytest.param(("advise", "--micro-batch", "1", "--zero-stage", "0"), marks=pytest.mark.sweep),
    ],
    ids=lambda command: command[0],
)
def test_every_answer_that_counts_with_it_says_so(command: tuple[str, ...], tmp_path):
    kept(tmp_path / "config", calibration(GPU, **FAST))
    words = (*command, *SETUP, "--gpu", GPU)
    said = "measured: seconds and fixed bytes by a calibration of 2026-11-24 on a card"
    says(" ".join(call(*words).out.split()), said)
    says(call(*words, "--json").out, '"calibration": {', '"date": "2026-11-24"')
    assert "measured:" not in call(*words, "--no-calibration").out


def test_an_estimate_that_does_not_fit_needs_none_of_other_cards(tmp_path):
    words = ("estimate", "--model", "gpt2", "--gpu", "rtx-4060", "--method", "full", "--micro-batch", "64")
    before = call(*words)
    kept(tmp_path / "config", calibration("rtx-3090", **FAST)).write_text("{")
    assert call(*words) == before
    assert "does not fit" in before.out


@pytest.mark.parametrize(
    "words", [("gpus", GPU), ("prices", GPU), ("buy", "--gpu", GPU, "--hours-per-week", "9"), ("gpus", "--detect")]
)
def test_lists_of_cards_and_prices_read_none(words: tuple[str, ...], monkeypatch, tmp_path):
    """An older vlmplan's may be there, which is to be measured again."""
    fake_driver(monkeypatch, [FakeCard(name="NVIDIA GeForce RTX 4090", total_mib=24564, device_id="2684")])
    before = call(*words)
    kept(tmp_path / "config", calibration(GPU, **FAST)).write_text("{")
    assert call(*words) == before
    assert before.code == 0


def test_one_that_cannot_be_read_can_be_measured_again(monkeypatch, tmp_path):
    fake_driver(monkeypatch, [FakeCard(name="NVIDIA GeForce RTX 4090", total_mib=24564, device_id="2684")])
    kept(tmp_path / "config", calibration(GPU, **FAST)).write_text("{")
    machine = []
    monkeypatch.setattr(
        "vlmplan.calibrating.calibrate", lambda found, **_: machine.append(found) or calibration(GPU, **FAST)
    )
    assert call("calibrate", "--gpu", "local").code == 0
    assert [one.gpu.id for one in machine] == [GPU]
    assert call(*ESTIMATE, "--json").document["calibration"]["date"] == "2026-11-24"
