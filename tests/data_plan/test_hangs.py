"""Samples of which some have no image: where ranks wait for each other for ever, the plan says so."""

from pathlib import Path

import pytest

from chat_files import asked, jsonl, png
from cli_calls import call

pytestmark = pytest.mark.usefixtures("own_cache")
TEXT = {"type": "text", "text": "What is it?"}
IMAGE = {"type": "image", "path": "a.png"}


def cautions(folder: Path, *options: str, num_gpus: int = 2, with_text_alone: int = 3) -> list[str]:
    (folder / "a.png").write_bytes(png())
    rows = [asked(IMAGE, TEXT)] * 5 + [asked(TEXT)] * with_text_alone
    words = ("--model", "qwen2-vl-2b", "--gpu", f"a100-sxm4-80gb:{num_gpus}", "--data", str(jsonl(folder, *rows)))
    found = call("estimate", *words, *options, "--json")
    assert found.code == 0, found.err
    return found.document["data"]["cautions"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("options", "engine"),
    [
        (("--for", "trl", "--zero-stage", "3"), "under ZeRO-3"),
        pytest.param(("--for", "transformers", "--zero-stage", "3"), "under ZeRO-3", marks=pytest.mark.sweep),
        (("--for", "transformers", "--fsdp"), "under FSDP2"),
        (("--for", "trl", "--zero-stage", "2"), None),
        pytest.param(("--for", "llamafactory", "--zero-stage", "3"), None, marks=pytest.mark.sweep),
        pytest.param(("--zero-stage", "3"), None, marks=pytest.mark.sweep),
    ],
)
def test_a_rank_without_images_hangs_where_weights_are_gathered_and_no_blank_is_added(tmp_path, options, engine):
    found = cautions(tmp_path, *options)
    assert [engine in sentence for sentence in found] == ([] if engine is None else [True])
    assert all(sentence.startswith("3 of 8 samples have no image") for sentence in found)


@pytest.mark.sweep
def test_one_gpu_waits_for_none_and_samples_that_all_have_images_are_alike(tmp_path):
    sharded = ("--for", "trl", "--zero-stage", "3")
    assert not cautions(tmp_path, *sharded, num_gpus=1)
    assert not cautions(tmp_path, *sharded, with_text_alone=0)
