"""What processors write around images joins the text there: planner and trainer count the tokens of both together."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torchvision") is None:
    pytest.skip("processors need torchvision", allow_module_level=True)

from published_folders import write_published
from transformers import AutoTokenizer

from chat_files import jsonl, png, text
from vlmplan.chats.samples import read_chats
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import rules_of
from vlmplan.dataset import dataset
from vlmplan.models import find_model
from vlmplan_trainer.data.encode import IGNORED_LABEL, Encoder, PlannedSamples
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.models.processors import load_processor

IMAGE = {"type": "image", "path": "a.png"}
LINES = ["\n" * count for count in range(1, 9)]
"""Which are tokens of their own, by user-defined pieces of Gemma's sentencepiece model."""
ANSWER = {"role": "assistant", "content": [text("A cat.")]}
SHOWN: list[list[dict[str, str]]] = [
    [IMAGE, text("What is it?")],
    [text("What is it?"), IMAGE],
    [IMAGE, text("\nWhat is it?")],
    [text("See:\n"), IMAGE, text("\n\nand "), IMAGE, IMAGE, text("\n")],
    [text("No image.")],
]


def folder_of(family: str, path: Path) -> Path:
    """``<image>`` of Ovis 2 is no token; line breaks of Gemma are, as many at once as there are."""
    folder = write_published(path / family, family)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if family == "ovis2":
        state = tokenizer.backend_tokenizer.to_str()
        (folder / "tokenizer.json").write_text(state.replace('"content":"<image>"', '"content":"<no image>"'))
        return folder
    tokenizer.add_tokens(LINES)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def learnt_in(samples: list[Any], encoder: Encoder) -> int:
    return sum(int((encoder.encode(sample)["labels"][:, 1:] != IGNORED_LABEL).sum()) for sample in samples)


@pytest.mark.parametrize("family", ["gemma3", "ovis2", "idefics3"])
def test_tokens_around_images_are_those_of_the_processor(family: str, tmp_path: Path):
    folder = folder_of(family, tmp_path)
    (tmp_path / "a.png").write_bytes(png(60, 50))
    before = [{"role": "user", "content": [text("Hi.")]}, {**ANSWER, "loss": False}]
    rows = [{"messages": [*before[: 2 * (index % 2)], {"role": "user", "content": content}, ANSWER]}
            for index, content in enumerate(SHOWN)]  # fmt: skip
    data = jsonl(tmp_path, *rows)
    files = find_model(str(folder))
    processor: Any = load_processor(str(folder), is_vision=True)
    token = processor.tokenizer("<image>", add_special_tokens=False)["input_ids"]
    assert family != "ovis2" or len(token) > 1
    encoder = Encoder(processor, PlannedSamples(seq_len=100_000), model_type=family)
    samples = read_chats(data, skips_bad=False, no_videos=None)[0]
    made = [encoder.encode(sample)["input_ids"].shape[1] for sample in samples]
    scan, planned = scanned(encoder, samples), dataset(data, files)
    assert scan.lengths == made
    assert planned.learnt_tokens == scan.num_learnt == learnt_in(samples, encoder)
    found = sample_shapes(planned, files, rules_of(None))
    newlines = len(processor.tokenizer("\n\n", add_special_tokens=False)["input_ids"]) - 1
    assert newlines == 0 or family in ("idefics3", "ovis2")
    tiled = newlines if family == "idefics3" else 0  # published tokenizers have a token of two line breaks
    counts = [sum(part is IMAGE for part in content) for content in SHOWN]
    assert [one.tokens + tiled * count for one, count in zip(found.shapes, counts, strict=True)] == made
