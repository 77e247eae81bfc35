"""Images that do not decode: found before training where there are few pixels, else counted and named when reached."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trainer_runs import planned, train_here

from vlmplan.chats import image_files
from vlmplan.chats.image_files import PixelBudget
from vlmplan.chats.samples import LEAVES_OUT, read_chats
from vlmplan_trainer.data.dummy import coloured_png
from vlmplan_trainer.models.tiny import write_tiny_model

NUM_SAMPLES, BAD = 6, 4
WORDS = ("--measured-steps", "0", "--save-minutes", "0")


def written(folder: Path) -> Path:
    """Six samples with an image each, of which that of line 4 is cut."""
    folder.mkdir()
    lines = []
    for number in range(1, NUM_SAMPLES + 1):
        whole = coloured_png((number, 0, 0), (56, 56))
        (folder / f"{number}.png").write_bytes(whole[:-30] if number == BAD else whole)
        turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "red"}]
        lines.append(json.dumps({"messages": turns, "images": [f"{number}.png"]}))
    (folder / "data.jsonl").write_text("\n".join(lines))
    return folder / "data.jsonl"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    model = write_tiny_model(tmp_path_factory.mktemp("models") / "qwen2_vl", "qwen2_vl")
    return planned(model, num_ranks=1, method="lora", zero_stage="none", micro_batch=1, grad_accum=1, num_samples=6)


def test_an_image_that_does_not_decode_stops_a_run_before_its_model_is_built(plan, tmp_path):
    data = written(tmp_path / "data")
    refused = train_here(plan, tmp_path, "--train-data", str(data), *WORDS)
    assert refused.code == 1
    assert f"{data}:{BAD}: image 1, " in refused.err
    assert "building the model" not in refused.out
    done = train_here(plan, tmp_path, "--train-data", str(data), *WORDS, "--skip-bad-samples")
    assert (done.code, len(done.losses)) == (0, NUM_SAMPLES - 1)
    assert counts(done.report) == {"num_skipped": 1, "num_left_out": 1, "num_bad": 1, "num_no_room": 0}


@pytest.mark.sweep
def test_one_that_is_found_when_it_is_reached_is_named_and_counted_or_ends_the_run(plan, monkeypatch, tmp_path):
    monkeypatch.setattr("vlmplan.chats.samples.PixelBudget", lambda: PixelBudget(0))
    data = written(tmp_path / "data")
    words = ("--train-data", str(data), *WORDS, "--save-every", "1")
    done = train_here(plan, tmp_path / "skips", *words, "--skip-bad-samples")
    assert (done.code, len(done.losses)) == (0, NUM_SAMPLES)
    assert done.out.count(f"left out: {data}:{BAD}: image 1") == 1
    assert counts(done.report) == {"num_skipped": 1, "num_left_out": 1, "num_bad": 1, "num_no_room": 0}
    assert done.report["left_out_late"][0].startswith(f"{data}:{BAD}: image 1")
    stopped = train_here(plan, tmp_path / "stops", *words)
    assert stopped.code == 1
    assert f"vlmplan_trainer: {data}:{BAD}: image 1" in stopped.err
    assert LEAVES_OUT in stopped.err
    on = train_here(plan, tmp_path / "stops", *words, "--skip-bad-samples", "--resume")
    assert (on.code, on.losses) == (0, done.losses), on.err
    assert counts(on.report) == counts(done.report)


def counts(report: Mapping[str, Any]) -> dict[str, int]:
    return {name: report[name] for name in ("num_skipped", "num_left_out", "num_bad", "num_no_room")}


def test_so_many_pixels_are_tried_and_no_more(tmp_path):
    data = written(tmp_path / "data")
    samples, report = read_chats(data, skips_bad=True)
    assert (len(samples), report.num_bad) == (NUM_SAMPLES - 1, 1)
    budget = PixelBudget(2 * 56 * 56 + 1)
    assert [budget.takes((56, 56)) for _ in range(3)] == [True, True, False]
    assert image_files.MAX_TRIED_PIXELS >= image_files.MAX_PIXELS


@pytest.mark.parametrize("key", ["content", "role"])
def test_half_of_a_character_is_a_bad_sample(key, tmp_path):
    turn = {"role": "user", "content": "a"}
    good = {"messages": [turn, {"role": "assistant", "content": "b\U0001f600"}]}
    bad = {"messages": [turn | {key: "\ud800"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "data.jsonl").write_text(json.dumps(bad) + "\n" + json.dumps(good))
    samples, report = read_chats(tmp_path / "data.jsonl", skips_bad=True)
    assert len(samples) == 1
    assert report.sentences[0].endswith(
        r"data.jsonl:1 has half of a character, \ud800 (a lone surrogate), which is no text"
    )
