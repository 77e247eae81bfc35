"""Runs on samples with videos: planned from their headers, trained, measured, exported, and gone on with."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("av")
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("processors of videos need torchvision", allow_module_level=True)

from published_folders import FAMILIES, TEMPLATE, write_published
from tiny_plans import plan_of_data
from trainer_runs import train_here

from chat_files import ANSWER, jsonl, png, text
from small_videos import write_video
from vlmplan.run.training import LENGTHS_FILE
from vlmplan_trainer.models.tiny import write_tiny_model

NUM_SAMPLES = 4
SIZES = {"qwen2_vl": (196, 112), "qwen2_5_omni_thinker": (420, 252), "qwen3_omni_moe_thinker": (480, 288)}
"""Of frames of 196x112: those of the Omni models have 128 tokens at the least."""


@pytest.fixture(params=SIZES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family, folder = request.param, tmp_path / "models" / request.param
    if family == "qwen2_vl":
        return write_tiny_model(folder, family)
    said = FAMILIES[family]
    write_published(folder, family, replace(said, settings={**said.settings, "max_pixels": 12_845_056}))
    video = f"'{said.image.replace('image', 'video')}' if part.type == 'video' else part.text }}}}"
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("part.text }}", video).replace("IMAGE", said.image))
    return folder


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Equal samples: 71 frames at 10 a second, of which 14 are taken, and a question."""
    write_video(tmp_path / "clip.mp4", num_frames=71, size=(196, 112))
    row = {"messages": [{"role": "user", "content": [{"type": "video", "video": "clip.mp4"}, text("What?")]}, ANSWER]}
    return jsonl(tmp_path, *[row] * NUM_SAMPLES)


def test_a_run_takes_what_images_of_its_frames_take_and_leaves_a_model_that_is_gone_on_with(
    model: Path, clips: Path, tmp_path: Path
):
    plan = plan_of_data(model, clips)
    shape = (plan.workload.images_per_sample, plan.workload.image_width, plan.workload.image_height)
    size = SIZES[model.name]
    assert shape == (14 // 2, *size)
    words = ("--train-data", str(clips), "--max-steps", "3")
    done = train_here(plan, tmp_path / "videos", *words)
    assert done.code == 0, done.err
    assert "4 samples to train on, no images, 4 videos" in done.out
    lengths = (tmp_path / "videos" / "run" / LENGTHS_FILE).read_text().split()
    assert lengths == [str(plan.workload.seq_len)] * NUM_SAMPLES
    folder = tmp_path / "frames"
    folder.mkdir()
    (folder / "frame.png").write_bytes(png(*size))
    shown = [{"type": "image", "image": "frame.png"}] * shape[0]
    row = {"messages": [{"role": "user", "content": [*shown, text("What?")]}, ANSWER]}
    images = jsonl(folder, *[row] * NUM_SAMPLES)
    of_images = plan_of_data(model, images)
    assert of_images.workload.images_per_sample == shape[0]
    alike = train_here(of_images, tmp_path / "images", "--train-data", str(images), "--max-steps", "3")
    assert alike.code == 0, alike.err
    for name in ("load, peak", "forward, peak", "backward, peak", "step, peak", "peak allocated"):
        assert done.error_of(name) == pytest.approx(alike.error_of(name), abs=0.005), name

    from transformers import AutoModelForImageTextToText, AutoProcessor

    AutoModelForImageTextToText.from_pretrained(tmp_path / "videos" / "run" / "model")
    assert AutoProcessor.from_pretrained(tmp_path / "videos" / "run" / "model").video_processor is not None
    more = train_here(plan, tmp_path / "videos", *words[:2], "--max-steps", "4", "--resume")
    assert more.code == 0, more.err
    assert len(more.metrics) == 4
