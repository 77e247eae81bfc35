"""Runs of families made of others' parts on images: planned, trained, gone on with, measured and exported."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from published_folders import write_published
from seeing_folders import SEEING
from tiny_plans import plan_of_data
from trainer_runs import assert_goes_on_alike, train_here

from chat_files import ANSWER, jsonl, png, text
from vlmplan_trainer.data.downscaling import images_of_sample

IN_EVERY_RUN = ("vipllava",)
OF_CUDA = {
    "aria": 2 * 3 * 980**2 * 2,
    "deepseek_ocr2": 2 * 4 * 4**2 * 2 * (14 * 14) ** 2 * 4,
    "got_ocr2": 2 * 2 * (64 * 64) ** 2 * 4,
}
"""Bytes of backward that are there on CUDA alone. Of Aria the pixels of two images, which are no copy on the CPU.
Of the others what CUDA's softmax takes beside its gradient (``ops.softmax``): a float32 number for each score, of two
images and two heads; of DeepSeek-OCR 2 in four rows of four windows of four tiles."""
WRITTEN_OUT = ("deepseek_ocr2",)
"""Whose scores are written out, as the kernels of CPU and CUDA do not take the same for sequences as long as its."""
CASES = [
    pytest.param(family, method, marks=() if family in IN_EVERY_RUN and method == "full" else pytest.mark.sweep)
    for family in SEEING
    for method in ("full", "lora")
]


@pytest.mark.parametrize(("family", "method"), CASES)
def test_a_run_on_images_goes_on_alike_and_leaves_a_model_that_generates(family: str, method: str, tmp_path: Path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    said = SEEING[family]
    if said.needs is not None and importlib.util.find_spec(said.needs) is None:
        pytest.skip(f"transformers loads no processor of {family} without {said.needs}")
    folder = write_published(tmp_path / family, family, said)
    for name, size in {"a.png": (60, 50), "b.png": (50, 60)}.items():
        (tmp_path / name).write_bytes(png(*size))
    shown = [{"type": "image", "path": name} for name in ("a.png", "b.png")]
    rows = [
        {"messages": [{"role": "user", "content": [*shown[:count], text("What?")]}, ANSWER]} for count in (1, 2, 2, 1)
    ]
    data = jsonl(tmp_path, *rows)
    attention = "eager" if family in WRITTEN_OUT else None
    plan = plan_of_data(folder, data, method=method, train_vision=True, attention=attention)
    words = ("--train-data", str(data), "--max-steps", "4", "--save-every", "2")
    done = train_here(plan, tmp_path / "whole", *words)
    assert done.code == 0, done.err
    assert "4 samples to train on, 6 images" in done.out
    assert_goes_on_alike(plan, done, tmp_path / "again", *words)
    for line in done.report["planned_and_measured"]:
        if line["name"] in ("load, peak", "backward, peak"):
            others = OF_CUDA.get(family, 0) if line["name"] == "backward, peak" else 0
            assert abs((line["planned"] - others) / line["measured"] - 1) < 0.08, line
    exported = done.folder / ("model" if method == "full" else "adapter")
    processor = AutoProcessor.from_pretrained(exported)
    model: Any = AutoModelForImageTextToText.from_pretrained(exported, dtype=torch.bfloat16)
    prompt = f"<|im_start|>user\n{said.image}What is it?<|im_end|>\n<|im_start|>assistant\n"
    images = images_of_sample(processor, [Image.new("RGB", (56, 40), "red")])
    inputs = processor(text=[prompt], images=images, return_tensors="pt")
    made = model.eval().generate(**inputs.to(torch.bfloat16), max_new_tokens=4, do_sample=False)
    assert made.shape[1] > inputs["input_ids"].shape[1]
