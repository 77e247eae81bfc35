"""A checkpoint is whole or not there: what is damaged is named and not loaded, what an earlier one has is kept."""

import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_faults import flip, poisoned
from trainer_runs import Outcome, planned, train_here

from vlmplan.errors import InputError
from vlmplan.launch.finished import finished_problem
from vlmplan.run.record import read_record
from vlmplan.run.training import CHECKPOINTS, MANIFEST
from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.reporting.progress import ProgressReporter
from vlmplan_trainer.saving.checkpoint import newest_checkpoint, whole_checkpoints

NUM_STEPS = 6
WORDS = ("--dummy-data", "64", "--learning-rate", "1e-2", "--measured-steps", "0", "--keep-last", "3")
LONG = (*WORDS, "--save-every", "2", "--max-steps", str(NUM_STEPS))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "llama", "llama")
    return planned(model, num_ranks=1, method="full", zero_stage="none", num_samples=48, global_batch=8, micro_batch=2)


@pytest.fixture(scope="module")
def unbroken(plan, tmp_path_factory) -> Outcome:
    """A run with checkpoints of steps 2, 4 and 6."""
    done = train_here(plan, tmp_path_factory.mktemp("unbroken"), *LONG)
    assert done.code == 0, done.err
    return done


@pytest.fixture
def copied(unbroken, tmp_path) -> Path:
    """The folder of that run, to damage; without its report, as if it had been killed before its end."""
    shutil.copytree(unbroken.folder, tmp_path / "run")
    (tmp_path / "run" / "report.json").unlink()
    return tmp_path / "run"


def place_of(run: Path, step: int = NUM_STEPS) -> Path:
    return run / CHECKPOINTS / f"step-{step:08d}"


def rewritten(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """A fault that changes what the manifest says."""

    def damage(place: Path) -> None:
        content = json.loads((place / MANIFEST).read_text())
        change(content)
        (place / MANIFEST).write_text(json.dumps(content))

    return damage


def replaced(name: str, made: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(place: Path) -> None:
        (place / name).unlink()
        made(place / name)

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a bit of the weights": (lambda place: flip(place / "state.pt"), "state.pt is not as it was written"),
    "a bit of the random numbers": (lambda place: flip(place / "random-0.pt"), "random-0.pt is not as it was written"),
    "a file cut": (lambda place: os.truncate(place / "state.pt", 999), "state.pt has 999 bytes and was written with"),
    "a file missing": (lambda place: (place / "random-0.pt").unlink(), "random-0.pt is missing"),
    "a file more": (lambda place: (place / "more.pt").touch(), "more.pt is not among the files"),
    "a link": (replaced("state.pt", lambda path: path.symlink_to("random-0.pt")), "state.pt is missing or no regular"),
    "a FIFO": (replaced("state.pt", os.mkfifo), "state.pt is missing or no regular"),
    "no manifest": (lambda place: (place / MANIFEST).unlink(), "complete.json is missing"),
    "a manifest that is a FIFO": (replaced(MANIFEST, os.mkfifo), "complete.json is missing or no regular"),
    "half a manifest": (lambda place: os.truncate(place / MANIFEST, 200), "complete.json is not JSON"),
    "a bit of the manifest": (rewritten(lambda c: c["position"].update(step=5)), "complete.json is not as it was"),
    "a manifest without a run": (rewritten(lambda c: c.pop("run")), "complete.json is not as it was"),
    "no files": (rewritten(lambda c: (c.pop("schema"), c.update(files=[]))), "files is []"),
    "no run": (rewritten(lambda c: (c.pop("schema"), c.pop("run"))), "run is missing"),
    "a deep manifest": (lambda place: (place / MANIFEST).write_text("[" * 10**5), "nested too deeply"),
    "no text": (lambda place: (place / MANIFEST).write_bytes(b"\xff"), "not text in UTF-8"),
    "another schema": (rewritten(lambda c: c.update(schema="x")), "schema is"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(name: str, copied):
    damage, said = DAMAGES[name]
    damage(place_of(copied))
    found = newest_checkpoint(copied)
    assert found.place == place_of(copied, 4)
    first, second = found.notes
    assert said in first
    assert first.startswith("the checkpoint step-00000006 is damaged (")
    assert second == "step-00000004 is whole; 2 steps after step 4 are trained again"
    assert place_of(copied).with_name("step-00000006.damaged").is_dir()
    assert found.place in whole_checkpoints(copied)


def test_where_none_is_whole_each_is_named_and_nothing_is_touched(copied):
    for step in (2, 4, 6):
        flip(place_of(copied, step) / "state.pt", at=step / 10)
    with pytest.raises(InputError, match=r"no checkpoint in .* is whole \(step-00000006: state.pt .*; step-00000002"):
        newest_checkpoint(copied)
    assert len(list((copied / CHECKPOINTS).iterdir())) == 3


def test_any_flipped_bit_of_any_file_is_found(copied):
    place, places = place_of(copied), [index / 11 for index in range(11)]
    for name in ("state.pt", "random-0.pt", MANIFEST):
        before = (place / name).read_bytes()
        for at in places:
            flip(place / name, at)
            assert newest_checkpoint(copied).place == place_of(copied, 4), (name, at)
            place.with_name(place.name + ".damaged").rename(place)
            (place / name).write_bytes(before)
    assert newest_checkpoint(copied).notes == ()


def test_a_run_goes_on_from_the_one_before_as_if_nothing_had_happened(plan, unbroken, copied):
    flip(place_of(copied) / "state.pt")
    done = train_here(plan, copied.parent, *LONG, "--resume")
    assert done.code == 0, done.err
    assert "step-00000006 is damaged (state.pt is not as it was written" in done.out
    assert [line["step"] for line in done.metrics] == list(range(1, NUM_STEPS + 1))
    assert done.losses == unbroken.losses
    names = {path.name for path in (copied / CHECKPOINTS).iterdir()}
    assert names == {f"step-{step:08d}" for step in (2, 4, 6)}  # what was damaged is gone


def test_a_checkpoint_of_version_0_1_0_has_no_sums_and_is_read(plan, unbroken, copied):
    def older(content: dict) -> None:
        for key in ("schema", "sha256"):
            del content[key]
        content["files"] = {name: mark["bytes"] for name, mark in content["files"].items()}
        content["run"] = {"samples": 64, "seed": 0}

    rewritten(older)(place_of(copied, 4))
    shutil.rmtree(place_of(copied))
    done = train_here(plan, copied.parent, *LONG, "--resume")
    assert done.losses == unbroken.losses


def test_every_file_and_folder_is_synced_before_a_checkpoint_gets_its_name(plan, monkeypatch, tmp_path):
    synced: set[str] = set()
    fsync, replace = os.fsync, os.replace
    renamed: dict[str, set[str]] = {}

    def noted(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def watched(source, target) -> None:
        renamed[str(target)] = {str(source), *map(str, Path(source).rglob("*"))} - synced
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", watched)
    assert train_here(plan, tmp_path, *WORDS, "--max-steps", "1").code == 0
    place = place_of(tmp_path / "run", 1)
    assert renamed[str(place)] == set()
    assert str(place.parent) in synced


# -- another run -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--learning-rate", "2e-2"), "learning rate 0.01, this one has 0.02"),
        (("--schedule", "linear"), "schedule cosine, this one has linear"),
        (("--weight-decay", "0.1"), "weight decay 0.0, this one has 0.1"),
        (("--dummy-data", "72"), "samples 64, this one has 72"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_without_run_json_too(plan, copied, words, said):
    (copied / "run.json").unlink()
    refused = train_here(plan, copied.parent, *LONG, *words, "--resume")
    assert (refused.code, refused.out.count("building the model")) == (1, 0)
    assert said in refused.err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seq_len": 32}, "sequence length 64, this one has 32"),
        ({"precision": "fp32"}, "precision bf16, this one has fp32"),
        ({"method": "lora"}, "method full, this one has lora"),
    ],
)
def test_a_checkpoint_of_another_plan_is_refused(plan, copied, changes, said):
    options = {"method": "full", "zero_stage": "none", "num_samples": 48, "global_batch": 8, "micro_batch": 2}
    other = planned(Path(plan.model_source), num_ranks=1, **{**options, **changes})
    refused = train_here(other, copied.parent, *LONG, "--resume")
    assert refused.code == 1
    assert said in refused.err


def test_data_of_equal_length_with_other_text_is_refused_without_run_json_too(plan, tmp_path):
    line = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "%s"}]}\n'
    data, words = tmp_path / "data.jsonl", ("--measured-steps", "0", "--max-steps")
    data.write_text(line % "b" * 16)
    given = ("--train-data", str(data), *words)
    assert train_here(plan, tmp_path, *given, "1").code == 0
    (tmp_path / "run" / "run.json").unlink()
    data.write_text(line % "c" * 16)
    refused = train_here(plan, tmp_path, *given, "2", "--resume")
    assert refused.code == 1
    assert "training data (SHA-256)" in refused.err


def test_a_finished_run_is_not_resumed_over_and_can_be_made_longer(plan, unbroken, tmp_path):
    shutil.copytree(unbroken.folder, tmp_path / "run")
    report = (tmp_path / "run" / "report.json").read_bytes()
    refused = train_here(plan, tmp_path, *LONG, "--resume")
    assert refused.code == 1
    assert re.search(r"its 6 steps are done and report.json is written; --max-steps or --epochs", refused.err)
    assert (tmp_path / "run" / "report.json").read_bytes() == report
    shorter = train_here(plan, tmp_path, *LONG, "--max-steps", "4", "--resume")
    assert (shorter.code, "its 6 steps are done" in shorter.err) == (1, True)
    assert "building" not in shorter.out  # no model is made for that
    record = read_record(tmp_path / "run")
    assert record is not None
    resumed = replace(record.options, output_dir=tmp_path / "run", resume=True)
    assert finished_problem(plan, resumed) in refused.err
    assert finished_problem(plan, replace(resumed, max_steps=7)) is None
    longer = train_here(plan, tmp_path, *LONG, "--max-steps", "7", "--resume")
    assert (longer.code, longer.report["steps"]) == (0, 7)


# -- hostile ---------------------------------------------------------------------------------------------------------


def test_code_in_a_checkpoint_with_right_sums_is_not_run(plan, copied, tmp_path):
    mark = tmp_path / "was-run"
    poisoned(place_of(copied), "state.pt", mark)
    refused = train_here(plan, copied.parent, *LONG, "--resume")
    assert (refused.code, mark.exists()) == (1, False)
    assert "step-00000006 asks for posix.mkdir to be run" in refused.err
    torch.load(place_of(copied) / "state.pt", weights_only=False)
    assert mark.exists()  # it would have been


# -- what the disk does ---------------------------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_is_named_with_what_is_left(plan, unbroken, copied):
    shutil.rmtree(place_of(copied))
    shutil.rmtree(place_of(copied, 4))
    largest = (place_of(copied, 2) / "state.pt").stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, hard))
    try:
        failed = train_here(plan, copied.parent, *LONG, "--resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert failed.code == 1
    assert re.search(r"the checkpoint \S*step-00000004 cannot be written: .*; step-00000002 is whole", failed.err)
    done = train_here(plan, copied.parent, *LONG, "--resume")
    assert done.losses == unbroken.losses


def test_a_run_whose_folder_is_moved_away_says_so_and_makes_no_other(plan, monkeypatch, tmp_path):
    step = ProgressReporter.step

    def moving(progress: ProgressReporter, report, meter) -> None:
        step(progress, report, meter)
        if report.step == 1:
            (tmp_path / "run").rename(tmp_path / "moved")

    monkeypatch.setattr(ProgressReporter, "step", moving)
    failed = train_here(plan, tmp_path, *LONG)
    assert failed.code == 1
    assert re.search(r"the checkpoint \S*step-00000002 cannot be written: No such file or directory", failed.err)
    assert not (tmp_path / "run").exists()
