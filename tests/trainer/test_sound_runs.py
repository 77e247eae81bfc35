"""Runs on samples with sounds: planned from their headers, trained, measured as planned, exported, and gone on with."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("av")

from sound_folders import write_hearing
from tiny_plans import model_files, plan_of_data, tiny_plan
from trainer_runs import train_here

from chat_files import asked, jsonl, text
from small_sounds import write_wav
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Precision
from vlmplan.run.training import LENGTHS_FILE
from vlmplan.workload import Workload

SECONDS, NUM_SAMPLES = 1.5, 4
PHASES = ("load, peak", "init, peak", "forward, peak", "backward, peak", "step, peak", "peak allocated")


@pytest.fixture
def heard(tmp_path: Path) -> Path:
    """Samples alike."""
    write_wav(tmp_path / "a.wav", SECONDS)
    return jsonl(tmp_path, *[asked({"type": "audio", "audio": "a.wav"}, text("What?"))] * NUM_SAMPLES)


def test_a_run_takes_what_is_planned_and_leaves_a_model_that_hears(heard: Path, tmp_path: Path):
    folder = write_hearing(tmp_path / "gemma4", "gemma4")
    plan = plan_of_data(folder, heard, precision="fp32")
    assert (plan.workload.audios_per_sample, plan.workload.audio_seconds) == (1, SECONDS)
    words = ("--train-data", str(heard), "--max-steps", "2")
    done = train_here(plan, tmp_path / "sounds", *words)
    assert done.code == 0, done.err
    assert "4 samples to train on, no images, 4 sounds" in done.out
    lengths = (tmp_path / "sounds" / "run" / LENGTHS_FILE).read_text().split()
    assert lengths == [str(plan.workload.seq_len)] * NUM_SAMPLES
    for name in PHASES:
        assert done.error_of(name) == pytest.approx(0, abs=0.002), name

    from transformers import AutoModelForImageTextToText, AutoProcessor

    from vlmplan_trainer.models.processors import load_processor

    result = tmp_path / "sounds" / "run" / "model"
    AutoModelForImageTextToText.from_pretrained(result)
    has_torchvision = importlib.util.find_spec("torchvision") is not None
    processor = (
        AutoProcessor.from_pretrained(result) if has_torchvision else load_processor(str(result), is_vision=True)
    )
    assert processor.feature_extractor.sampling_rate == 16_000
    more = train_here(plan, tmp_path / "sounds", *words[:2], "--max-steps", "3", "--resume")
    assert more.code == 0, more.err
    assert len(more.metrics) == 3


@pytest.mark.sweep
def test_made_up_samples_have_the_plans_sounds(tmp_path: Path):
    folder = write_hearing(tmp_path / "gemma4", "gemma4")
    sounds = {"audios_per_sample": 2, "audio_seconds": SECONDS}
    workload = Workload(model=model_files(folder), seq_len=256, num_samples=2, **sounds)
    plan = tiny_plan(folder, Recipe(method=Method.FULL, precision=Precision.FP32), workload=workload)
    done = train_here(plan, tmp_path / "made", "--dummy-data", "2", "--max-steps", "1")
    assert done.code == 0, done.err
    assert "2 samples to train on, no images, 4 sounds" in done.out
