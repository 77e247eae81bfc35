"""Runs on images of models whose processors do not say where they write them: planned from data, trained, gone on with
and exported."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from published_folders import FAMILIES, write_published
from tiny_plans import plan_of_data
from trainer_runs import assert_goes_on_alike, planned, train, train_here

from chat_files import jsonl, png
from vlmplan.errors import InputError

ASKED = "Question: which colour? Answer:"
COLOURS = {"a.png": " red", "b.png": " blue"}


def rows(family: str) -> list[dict[str, object]]:
    """As the published model is used: without a template where images stand before the text."""
    given = []
    for name, colour in COLOURS.items():
        prompt, completion = (
            [{"role": role, "content": said}] for role, said in (("user", ASKED), ("assistant", colour))
        )
        given.append({"prompt": prompt, "completion": completion, "images": [name]})
    return given * 4


@pytest.mark.sweep
@pytest.mark.parametrize("family", ["blip-2", pytest.param("instructblip", marks=pytest.mark.sweep), "idefics2"])
@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.sweep)])
def test_a_run_learns_goes_on_and_leaves_what_answers(family: str, method: str, tmp_path: Path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = write_published(tmp_path / "model", family)
    if family != "idefics2":
        (folder / "chat_template.jinja").unlink()
    for name, colour in COLOURS.items():
        (tmp_path / name).write_bytes(png(60, 50, colour.strip()))
    data = jsonl(tmp_path, *rows(family))
    plan = plan_of_data(folder, data, method=method, micro_batch=2, precision="fp32", epochs=3)
    words = ("--train-data", str(data), "--save-every", "4", "--keep-last", "2", "--learning-rate", "3e-3")
    done = train_here(plan, tmp_path / "out", *words)
    assert done.code == 0, done.err
    assert "8 samples to train on, 8 images" in done.out
    assert done.losses[-1] < done.losses[0]
    for name in ("load, peak", "forward, peak", "backward, peak"):
        assert abs(done.error_of(name)) < 0.05, (name, done.error_of(name))
    assert_goes_on_alike(plan, done, tmp_path / "on", *words)
    left = done.folder / ("model" if method == "full" else "adapter")
    model: Any = AutoModelForImageTextToText.from_pretrained(left)
    processor = AutoProcessor.from_pretrained(left)
    shown = FAMILIES[family].image + ASKED
    inputs = processor(text=[shown], images=[Image.open(tmp_path / "a.png")], return_tensors="pt")
    assert len(model.generate(**inputs, max_new_tokens=2)[0])


@pytest.mark.sweep
@pytest.mark.long
@pytest.mark.parametrize("family", ["blip-2", "instructblip"])
def test_sharded_query_tokens_are_whole_when_their_gradient_is_added(family: str, tmp_path: Path):
    """They are the model's own, which ZeRO-3 brings before the backward of its result; the loss is of the head's."""
    folder = write_published(tmp_path / "model", family)
    sharded = {"num_ranks": 2, "method": "full", "zero_stage": "3"}
    plan = planned(folder, image_size="56x56", images_per_sample=1, seq_len=64, **sharded)
    done = train(plan, tmp_path / "out", "--dummy-data", "4", "--max-steps", "2")
    assert done.code == 0, done.err


def test_made_up_samples_need_no_template(tmp_path: Path):
    folder = write_published(tmp_path / "model", "blip-2")
    (folder / "chat_template.jinja").unlink()
    plan = planned(
        folder, num_ranks=1, method="full", zero_stage="none", image_size="56x56", images_per_sample=1, seq_len=64
    )
    done = train_here(plan, tmp_path / "out", "--dummy-data", "2", "--max-steps", "1")
    assert done.code == 0, done.err
    assert "2 samples to train on, 2 images" in done.out


def test_samples_without_any_image_are_refused_before_a_model_is_loaded(tmp_path: Path):
    folder = write_published(tmp_path / "model", "blip-2")
    data = jsonl(tmp_path, {"prompt": "Why?", "completion": " So."})
    plan = planned(folder, num_ranks=1, method="full", zero_stage="none", seq_len=64)
    done = train_here(plan, tmp_path / "out", "--train-data", str(data))
    assert done.code != 0
    assert "shows no image, and the model's class takes no text without one" in done.err


def test_a_rehearsal_without_images_says_what_to_give():
    from transformers import Blip2Config

    from vlmplan_trainer.rehearse.batch import micro_batch
    from vlmplan_trainer.rehearse.samples import Samples

    samples = Samples(micro_batch=1, num_tokens=8, images_per_sample=0)
    with pytest.raises(InputError, match="takes no text without an image; give --images-per-sample 1"):
        micro_batch(Blip2Config(), samples)
