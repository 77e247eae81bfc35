"""A plan that was edited is held to what it takes as it stands, whichever line of it was changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calibrations import calibration, kept
from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.launch.beside_plan import other_ds_config
from vlmplan.launch.edited_plan import as_it_stands
from vlmplan.launch.plan_options import request_of
from vlmplan.plan import Plan, PlannedOffer, read_plan
from vlmplan.request import Request, parse
from vlmplan.units import usd_text

WORDS = ("--model", "smollm2-135m", "--gpu", "rtx-4060:2", "--method", "full", "--zero-stage", "2")
VISION = ("--model", "smolvlm-500m", "--gpu", "rtx-4090:2", "--method", "lora")


def written(folder: Path, words: tuple[str, ...]) -> dict[str, Any]:
    call("recommend", *words, "--num-samples", "1000", "--out", str(folder))
    return json.loads((folder / "plan.json").read_text())


def edited(folder: Path, words: tuple[str, ...], change: Callable[[dict[str, Any]], None]) -> tuple[Plan, Plan, list]:
    values = written(folder, words)
    change(values)
    path = folder / "plan.json"
    path.write_text(json.dumps(values))
    read = read_plan(path)
    return read, *as_it_stands(read, path, ())


@pytest.mark.parametrize("words", [WORDS, VISION, (*WORDS[:-1], "3"), (*WORDS, "--optimizer", "lion")])
def test_a_plan_as_it_was_written_is_as_it_expects(tmp_path: Path, words):
    read, stands, notes = edited(tmp_path, words, lambda values: None)
    assert (stands, notes) == (read, [])


@pytest.mark.parametrize("gbit", [1.25, 3200])
def test_a_plan_is_estimated_again_with_the_network_that_it_was_planned_with(tmp_path: Path, gbit: float):
    words = ("--model", "smollm2-135m", "--gpu", "h100-sxm:8", "--num-nodes", "2", "--method", "full")
    read, stands, notes = edited(tmp_path, (*words, "--inter-node-gbit", str(gbit)), lambda values: None)
    assert (stands, notes) == (read, [])
    explained = call("explain", "stage", "--plan", str(tmp_path), "--json").document["plan"]
    assert explained["step_seconds"] == read.expected.step_seconds
    assert request_of(read, model="smollm2-135m", gpu="h100-sxm:8").hardware.inter_node_gbit == gbit


@pytest.mark.parametrize("task", [(), *(("--task", kind) for kind in ("dpo", "reward", "kto", "grpo"))])
def test_the_request_of_a_plan_is_what_its_options_ask_for(tmp_path: Path, task: tuple[str, ...]):
    written(tmp_path, ("--model", "smollm2-135m", "--gpu", "rtx-4060:2", "--micro-batch", "4", *task))
    found = request_of(read_plan(tmp_path / "plan.json"), model="smollm2-135m", gpu="rtx-4060:2")
    assert parse(found.options()) == found
    assert Request().completed(found) == found


def _longer(values: dict[str, Any]) -> None:
    values["workload"]["seq_len"] *= 4


def _adapted(values: dict[str, Any]) -> None:
    values["recipe"]["method"] = "lora"


def _checkpointed(values: dict[str, Any]) -> None:
    values["recipe"]["activation_checkpointing"] ^= True


def _more_epochs(values: dict[str, Any]) -> None:
    values["workload"]["epochs"] = 5


@pytest.mark.parametrize("change", [_longer, _adapted, _checkpointed, _more_epochs])
def test_one_changed_line_changes_what_is_expected(tmp_path: Path, change):
    read, stands, [note] = edited(tmp_path, WORDS, change)
    assert stands.expected != read.expected
    assert stands.recipe == read.recipe
    assert "was changed after it was planned" in note
    if change is _more_epochs:
        assert (read.expected.num_steps, stands.expected.num_steps) == (63, 313)
        assert stands.expected.peak_device_bytes == read.expected.peak_device_bytes
        assert "takes 313 steps in place of 63, to which the run is held" in note
    if change is _adapted:
        assert stands.num_trainable_params < read.num_trainable_params == read.num_params
    if change is _longer:
        assert stands.expected.verdict == "does_not_fit"
        found = call(
            "launch",
            "--plan",
            str(tmp_path / "plan.json"),
            "--dummy-data",
            "9",
            "--output-dir",
            str(tmp_path / "run"),
            "--dry-run",
        )
        assert "the plan does not fit" in found.err
        assert "on each GPU in place of" in found.err


def test_a_line_that_no_trainer_can_follow_is_refused_as_an_option_is(tmp_path: Path):
    def change(values: dict[str, Any]) -> None:
        values["recipe"] |= {"method": "lora", "train_language": False}

    with pytest.raises(InputError, match="no layer is left to adapt outside the parts"):
        edited(tmp_path, WORDS, change)


CALIBRATED = ("--model", "smollm2-135m", "--gpu", "a100-sxm4-80gb", "--method", "full")
SLOW = {"matmul_bf16": 9e13, "context_bytes": 900_000_000}


def _with_small_buckets(ds_config: dict[str, Any]) -> None:
    ds_config["zero_optimization"]["reduce_bucket_size"] = 5_000_000


def _cut_off(ds_config: dict[str, Any]) -> None:
    del ds_config["gradient_clipping"]
    ds_config["zero_optimization"]["stage"] = 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ds_config: None, None),
        (
            _with_small_buckets,
            "says 5000000 for zero_optimization.reduce_bucket_size where the plan says 10000000: a run",
        ),
        (_cut_off, "says nothing for gradient_clipping where the plan says 1.0, and 1 more: a run is of the plan"),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_a_ds_config_beside_the_plan_that_was_edited_is_told_to_be_read_by_no_run(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], said: str | None, optimizer: str
):
    written(tmp_path, (*WORDS, "--optimizer", optimizer))
    file = tmp_path / "ds_config.json"
    ds_config = json.loads(file.read_text())
    change(ds_config)
    file.write_text(json.dumps(ds_config))
    for path in (tmp_path, tmp_path / "plan.json"):
        notes = other_ds_config(read_plan(path), path)
        assert len(notes) == (said is not None)
        assert said is None or said in notes[0]
    file.write_text("{")
    assert "a run is of the plan" in other_ds_config(read_plan(tmp_path), tmp_path)[0]


def settings_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's settings, for this test alone."""
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.setenv(name, str(folder))
    return folder


def test_a_plan_that_leaves_calibrations_out_does_so_wherever_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    settings = settings_in(tmp_path / "settings", monkeypatch)
    kept(settings, calibration(**SLOW))
    read, stands, notes = edited(tmp_path, (*CALIBRATED, "--no-calibration"), lambda values: None)
    assert (stands, notes) == (read, [])
    again = request_of(read, model="smollm2-135m", gpu="a100-sxm4-80gb:1")
    assert not again.hardware.uses_calibration
    explained = call("explain", "train_batch_size", "--plan", str(tmp_path), "--json").document["plan"]
    assert explained["step_seconds"] == read.expected.step_seconds


def test_a_plan_with_another_calibration_says_so_and_no_change_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    settings = settings_in(tmp_path / "settings", monkeypatch)
    file = kept(settings, calibration(**SLOW))
    calibrated, stands, notes = edited(tmp_path / "with", CALIBRATED, lambda values: None)
    assert (stands, notes) == (calibrated, [])
    assert calibrated.hardware.calibrated_on == "2026-11-24"
    file.unlink()
    path = tmp_path / "with" / "plan.json"
    assumed, [note] = as_it_stands(calibrated, path, ())
    assert note.startswith(f"{path} was planned with a calibration of 2026-11-24, which is not here: as it stands it ")
    assert " a step in place of " in note
    assert assumed.hardware.calibrated_on is None
    kept(settings, calibration(**SLOW))
    again, [note] = as_it_stands(assumed, path, ())
    assert note.startswith(f"a calibration of 2026-11-24 counts here, and {path} was planned without it: ")
    assert again == calibrated


RENTED = ("--model", "smollm2-135m", "--gpu", "l4:1", "--method", "full")


@pytest.mark.parametrize("pricing", ["on_demand", "interruptible"])
def test_a_plan_that_was_edited_costs_what_it_costs_when_it_is_planned_so(tmp_path: Path, pricing: str):
    words = (*RENTED, "--pricing", pricing)
    again = written(tmp_path / "again", (*words, "--epochs", "5"))
    again = again["expected"]["usd"], again["offer"]
    read, stands, [note] = edited(tmp_path / "once", words, _more_epochs)
    assert (stands.expected.usd, stands.offer) == (pytest.approx(again[0], rel=1e-12), PlannedOffer(**again[1]))
    assert f" and {usd_text(again[0])} in place of {usd_text(read.expected.usd or 0)}, to which" in note


def test_a_price_with_assumptions_that_a_plan_does_not_keep_is_not_guessed(tmp_path: Path):
    words = (*RENTED, "--download-gbit", "0.1")
    read, stands, notes = edited(tmp_path / "as it was", words, lambda values: None)
    assert (stands, notes) == (read, [])
    _, stands, [note] = edited(tmp_path / "edited", words, _more_epochs)
    assert stands.expected.usd is None
    assert " and an unknown price in place of $" in note


def test_a_run_that_goes_on_beside_another_calibration_is_held_to_that(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    settings = settings_in(tmp_path / "settings", monkeypatch)
    run = tmp_path / "run"
    written(run, CALIBRATED)
    words = ("launch", "--output-dir", str(run), "--resume", "--dummy-data", "1000", "--dry-run", "--json")
    before = call(*words).document
    kept(settings, calibration(**SLOW))
    now = call(*words).document
    [note] = set(now["notes"]) - set(before["notes"])
    assert note.startswith(f"a calibration of 2026-11-24 counts here, and {run / 'plan.json'} was planned without it: ")
    assert now["plan"]["expected"]["step_seconds"] > before["plan"]["expected"]["step_seconds"]
