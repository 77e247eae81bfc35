"""``vlmplan check --fix --data``: changes of a trainer's file that know the samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from chat_files import asked, jsonl, png_header
from cli_calls import DONE, FEW_LAYERS, call
from documented_json import documented_keys
from vlmplan.request import parse

FILE = """model_name_or_path: {model}
stage: sft
finetuning_type: {method}
template: x
dataset: a
cutoff_len: 2048
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
"""
NUM_SAMPLES, NUM_LONG = 256, 8
GPU = "rtx-3060-12gb:1"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("small").mkdir()
    Path("small/config.json").write_text(json.dumps(FEW_LAYERS), encoding="utf-8")
    Path("data").mkdir()


def text_data(*, longest: int) -> None:
    """Chats of 100 to 300 tokens by bytes, but for a few of ``longest``."""
    tokens = [longest if number < NUM_LONG else 100 + number % 200 for number in range(NUM_SAMPLES)]
    rows = [{"instruction": "x" * round(3.2 * count), "output": "y"} for count in tokens]
    jsonl(Path("data"), *rows)
    Path("data/dataset_info.json").write_text(json.dumps({"a": {"file_name": "chats.jsonl"}}))


def fix(file: str, *words: str, gpu: str = GPU) -> Any:
    found = call("check", file, "--gpu", gpu, "--data", "data", "--fix", "--json", *words)
    assert found.code == DONE, found.err
    return found.document


@pytest.mark.sweep
def test_what_fits_is_grouped_by_length_and_packed_where_that_saves_time():
    text_data(longest=1500)
    Path("train.yaml").write_text(FILE.format(model="small", method="lora"))
    found = fix("train.yaml", gpu="rtx-4090")
    assert found.keys() - {"schema"} == documented_keys("vlmplan.check/1")
    keys = [{change["key"] for change in one["changes"]} for one in found["fix"]]
    assert {"train_sampling_strategy", "packing"} <= set().union(*keys)
    seconds = [one["costs"]["run_seconds"] for one in found["fix"]]
    assert all(one["after"] <= 0.9 * one["before"] for one in seconds)
    assert seconds == sorted(seconds, key=lambda one: one["after"])
    assert all(one["num_samples_changed"] == 0 for one in found["fix"])


@pytest.mark.sweep
def test_a_lower_limit_says_how_many_samples_it_cuts():
    text_data(longest=20_000)
    Path("train.yaml").write_text(FILE.format(model="small", method="lora").replace("2048", "65536"))
    found = fix("train.yaml", "--write", "new.yaml")
    assert found["estimate"]["verdict"] == "does_not_fit"
    limits = [
        (change["after"], one["num_samples_changed"])
        for one in found["fix"]
        for change in one["changes"]
        if change["key"] == "cutoff_len"
    ]
    assert limits == [(320, NUM_LONG)]
    first = found["fix"][0]["costs"]
    again = call("check", "new.yaml", "--gpu", GPU, "--data", "data", "--json").document["estimate"]
    assert again["peak_device_bytes"] == first["device_bytes"]["after"]
    assert again["data"]["run_seconds"] == first["run_seconds"]["after"]


@pytest.mark.sweep
def test_fewer_pixels_say_how_many_images_become_smaller():
    Path("data/cat.png").write_bytes(png_header(5600, 5600))
    Path("data/dog.png").write_bytes(png_header(560, 560))
    shown = [asked({"type": "image", "path": f"{name}.png"}, {"type": "text", "text": "x"}) for name in ("cat", "dog")]
    jsonl(Path("data"), *(shown * 8))
    Path("train.sh").write_text(
        "MAX_PIXELS=36000000 swift sft --model Qwen/Qwen2-VL-2B-Instruct --tuner_type lora --torch_dtype bfloat16 "
        "--max_length 131072 --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --freeze_vit false "
        "--quant_bits 4 --quant_method bnb --attn_impl flash_attn\n"
    )
    first = fix("train.sh")["fix"][0]
    [change] = first["changes"]
    assert change["key"] == "MAX_PIXELS"
    assert 560**2 < int(change["after"]) < 5600**2
    assert (first["shrunk_image_fraction"], first["num_samples_changed"]) == (0.5, 0)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("more", "words", "expected"),
    [
        ("", (), NUM_SAMPLES),
        ("max_samples: 100", (), 100),
        ("max_samples: 100000", (), NUM_SAMPLES),
        ("max_samples: 100000", ("--num-samples", "5000"), 5000),
        ("max_samples: 100000\nmax_steps: 7", (), 7 * 8),
    ],
)
def test_max_samples_is_the_most_that_is_taken_of_the_data(more: str, words: tuple[str, ...], expected: int):
    text_data(longest=300)
    batch = "" if "max_steps" not in more else "\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2"
    text = "model_name_or_path: small\nstage: sft\nfinetuning_type: lora\ncutoff_len: 512\nbf16: true\n"
    Path("train.yaml").write_text(f"{text}{more}{batch}\n", encoding="utf-8")
    given = {"num_samples": int(words[1])} if words else {}
    request = parse({"config": "train.yaml", "gpu": ("rtx-4090",), "data": "data", **given})
    assert request.workload.num_samples == expected
    found = call("estimate", "--config", "train.yaml", "--gpu", "rtx-4090", "--data", "data", *words)
    assert f"assumed: {expected:,} samples" in found.out
