"""What a run remembers of its options, and which of them may be others when it goes on."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from test_training import OPTIONS

from vlmplan.errors import InputError, UnavailableError, VlmplanError
from vlmplan.run.record import (
    MAY_CHANGE,
    OF_EACH_START,
    RECORD_FILE,
    RunRecord,
    keep_record,
    read_record,
    record_of,
    record_text,
    resumed,
)
from vlmplan.run.training import LEARNING_RATES, TrainerOptions, flag
from vlmplan_trainer.options import parse_options

OTHER: dict[str, Any] = {
    "train_data": Path("/other.jsonl"),
    "eval_data": Path("/eval.jsonl"),
    "image_folder": Path("/images"),
    "dummy_data": 2 * 3 * 5,
    "rewards": Path("/rewards.py"),
    "beta": 0.3,
    "center_rewards_coefficient": 0.02,
    "desirable_weight": 1.5,
    "undesirable_weight": 0.5,
    "temperature": 0.6,
    "adapter": Path("/adapter"),
    "skip_bad_samples": True,
    "group_by_length": True,
    "language": "german",
    "speech_task": "translate",
    "random_weights": True,
    "learning_rate": 7e-3,
    "weight_decay": 0.5,
    "warmup_fraction": 0.25,
    "schedule": "constant",
    "save_every": 7,
    "save_minutes": 0.25,
    "keep_last": 11,
    "max_steps": 13,
    "seed": 17,
    "merge_adapters": True,
    "measured_steps": 0,
    "monitor": ("csv",),
}
"""A value for every option that no run here has."""


def written(folder: Path, record: RunRecord) -> RunRecord:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD_FILE).write_text(record_text(record))
    found = read_record(folder)
    assert found is not None
    return found


def run_on(folder: Path, **changes: Any) -> RunRecord:
    """The record of a run in ``folder/run`` on ``folder/data.jsonl``."""
    (folder / "data.jsonl").write_text('{"messages": []}\n')
    asked = TrainerOptions(**{"output_dir": folder / "run", "train_data": folder / "data.jsonl"} | changes)
    return written(folder / "run", record_of(asked, "lora"))


def again(record: RunRecord, **given_again: Any):
    return resumed(record, {"output_dir": record.options.output_dir, "resume": True} | given_again)


# -- what is kept ----------------------------------------------------------------------------------------------------


@given(options=OPTIONS)
def test_every_option_is_read_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, options: TrainerOptions):
    folder = tmp_path_factory.mktemp("run")
    record = written(folder, record_of(replace(options, output_dir=folder), "full"))
    rate = LEARNING_RATES["full"] if options.learning_rate is None else options.learning_rate
    assert record.options == replace(options, output_dir=folder, resume=False, learning_rate=rate)


def test_what_launch_was_given_is_read_back_too(tmp_path: Path):
    asked = TrainerOptions(output_dir=tmp_path, dummy_data=2)
    of_launch: dict[str, Any] = {"hostfile": Path("/hosts"), "catalog_files": (Path("/c.yaml"),)}
    record = record_of(asked, "full", planned_with={"model": "m", "seq_len": 7, "train_vision": False}, **of_launch)
    assert written(tmp_path, record) == record


def test_options_of_a_record_that_is_older_than_they_have_their_defaults(tmp_path: Path):
    record = run_on(tmp_path)
    path = tmp_path / "run" / RECORD_FILE
    content = json.loads(path.read_text())
    del content["options"]["keep_last"]
    path.write_text(json.dumps(content))
    assert read_record(tmp_path / "run") == record


@pytest.mark.parametrize(
    ("key", "value"), [("seed", "seven"), ("seed", -1), ("train_data", 3), ("monitor", "csv"), ("new_option", 1)]
)
def test_a_record_that_was_edited_badly_is_one_sentence(tmp_path: Path, key: str, value: object):
    run_on(tmp_path)
    path = tmp_path / "run" / RECORD_FILE
    content = json.loads(path.read_text())
    content["options"][key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=key.replace("_", "[_-]")):
        read_record(tmp_path / "run")


def test_the_trainer_keeps_what_launch_wrote_and_writes_where_nobody_did(tmp_path: Path):
    asked = TrainerOptions(output_dir=tmp_path, dummy_data=2)
    keep_record(asked, "full")
    assert read_record(tmp_path) == record_of(asked, "full")
    planned = record_of(asked, "full", planned_with={"model": "m"})
    written(tmp_path, planned)
    keep_record(asked, "full")
    keep_record(replace(asked, resume=True, save_every=3), "full")
    assert read_record(tmp_path) == replace(planned, options=replace(planned.options, save_every=3))


# -- going on --------------------------------------------------------------------------------------------------------


def test_every_option_of_the_trainer_has_another_value_here():
    assert OTHER.keys() == {item.name for item in fields(TrainerOptions)} - set(OF_EACH_START)


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"train_data"}))
def test_an_option_that_differs_is_refused_with_both_values_or_said(tmp_path: Path, name: str):
    record = run_on(tmp_path)
    before, now = getattr(record.options, name), OTHER[name]
    found = again(record, **{name: now})
    (sentence,) = found.problems + found.changes
    assert flag(name) in sentence
    for value in (before, now):
        if not isinstance(value, bool | None) and value != ():
            assert str(value[0] if isinstance(value, tuple) else value) in sentence
    assert bool(found.changes) is (name in MAY_CHANGE)
    assert getattr(found.options, name) == (now if name in MAY_CHANGE else before)


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"dummy_data", "random_weights"}))
def test_an_option_that_is_not_given_again_is_the_runs(tmp_path: Path, name: str):
    (tmp_path / "other.jsonl").write_text("{}\n")
    value = tmp_path / "other.jsonl" if name == "train_data" else OTHER[name]
    record = run_on(tmp_path, **{name: value})
    found = again(record)
    assert (found.problems, found.changes) == ((), ())
    assert getattr(found.options, name) == value
    assert again(record, **{name: value}) == found


def test_the_default_of_the_method_is_remembered_as_a_number(tmp_path: Path):
    record = run_on(tmp_path)
    assert again(record, learning_rate=LEARNING_RATES["lora"]).problems == ()
    assert len(again(record, learning_rate=2 * LEARNING_RATES["lora"]).problems) == 1


def test_a_seed_of_nought_is_a_seed(tmp_path: Path):
    (problem,) = again(run_on(tmp_path, seed=5), seed=0).problems
    assert "--seed 5" in problem
    assert "--seed 0" in problem


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"train_data", "dummy_data", "random_weights"}))
def test_a_run_that_has_done_no_step_may_be_given_anything(tmp_path: Path, name: str):
    record = run_on(tmp_path)
    asked = {"output_dir": record.options.output_dir, "resume": True, name: OTHER[name]}
    found = resumed(record, asked, is_begun=False)
    assert found.problems == ()
    assert getattr(found.options, name) == OTHER[name]
    assert flag(name) in found.changes[0]


def test_a_run_that_has_done_no_step_may_be_given_other_data(tmp_path: Path):
    record = run_on(tmp_path)
    (tmp_path / "data.jsonl").write_text("{}\n")
    asked = {"output_dir": record.options.output_dir, "resume": True}
    assert resumed(record, asked, is_begun=False).problems == ()
    found = resumed(record, asked | {"dummy_data": 6}, is_begun=False)
    assert (found.options.dummy_data, found.options.train_data) == (6, None)


# -- the data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"messages": [ ]}\n', '{"messages": []}\n' * 2, ' {"messages":[]}\n'])
def test_data_that_has_changed_since_is_refused(tmp_path: Path, text: str):
    record = run_on(tmp_path)
    (tmp_path / "data.jsonl").write_text(text)
    (problem,) = again(record).problems
    assert "data.jsonl is not what the run" in problem


def test_data_may_be_moved(tmp_path: Path):
    record = run_on(tmp_path)
    moved = (tmp_path / "data.jsonl").rename(tmp_path / "moved.jsonl")
    found = again(record, train_data=moved)
    assert found.problems == ()
    assert found.options.train_data == moved
    assert "moved.jsonl" in found.changes[0]
    moved.write_text("{}\n")
    assert again(record, train_data=moved).problems


# -- the trainer by itself -------------------------------------------------------------------------------------------


def test_the_trainer_goes_on_with_the_options_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run_on(tmp_path, learning_rate=3e-3)
    words = ["--plan", "p.json", "--output-dir", str(tmp_path / "run"), "--resume"]
    assert parse_options(words).learning_rate == 3e-3
    with pytest.raises(InputError, match=r"0\.003.*0\.001"):
        parse_options([*words, "--learning-rate", "1e-3"])
    assert parse_options([*words, "--save-every", "5"]).save_every == 5
    assert "--save-every 5 from here on; it was not given" in capsys.readouterr().out


def test_a_run_of_which_nothing_is_known_needs_its_options_again(tmp_path: Path):
    words = ["--plan", "p.json", "--output-dir", str(tmp_path), "--resume"]
    with pytest.raises(UnavailableError, match=r"has no run\.json.*command\.txt"):
        parse_options(words)
    assert parse_options([*words, "--dummy-data", "2"]).dummy_data == 2
    with pytest.raises(VlmplanError, match="does not exist"):
        parse_options([*words[:3], str(tmp_path / "none"), "--resume"])
