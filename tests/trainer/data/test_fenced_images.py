"""Samples of Idefics2: what the trainer makes of them is what the processor makes of them together."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_cases import learned, question
from published_folders import write_published

from chat_files import jsonl, png, text
from vlmplan.chats.samples import Sample, read_chats
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import rules_of
from vlmplan.dataset import dataset
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan_trainer.data.batches import collated
from vlmplan_trainer.data.encode import PlannedSamples, TooLongError
from vlmplan_trainer.data.fenced_images import FencedImageEncoder
from vlmplan_trainer.data.images import opened
from vlmplan_trainer.data.read import encoder_class
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.labels import IGNORED_LABEL
from vlmplan_trainer.models.processors import load_processor

FAMILY = "idefics2"
FENCE = "<fake_token_around_image>"
IMAGE, OTHER = {"type": "image", "path": "a.png"}, {"type": "image", "path": "b.png"}
SHOWN: list[list[dict[str, str]]] = [
    [IMAGE, text("What is it?")],
    [text("What is it? "), OTHER],
    [OTHER, text(" What is it?")],
    [text("See:\n"), IMAGE, text("\n\nand"), OTHER, IMAGE, text("\u00a0this, "), OTHER, text("<b>")],
    [IMAGE, OTHER, IMAGE, text("\u00e9t\u00e9")],
    [text("No image.")],
]


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "split"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_published(tmp_path_factory.mktemp("models") / FAMILY, FAMILY)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_image_splitting": request.param}))
    return folder


@pytest.fixture(scope="module")
def processor(folder: Path) -> Any:
    return load_processor(str(folder), is_vision=True)


def encoder(processor: Any, seq_len: int = 4096) -> FencedImageEncoder:
    made = encoder_class(FAMILY)(processor, PlannedSamples(seq_len=seq_len), model_type=FAMILY)
    assert isinstance(made, FencedImageEncoder)
    return made


def written(folder: Path) -> Path:
    (folder / "a.png").write_bytes(png(60, 50))
    (folder / "b.png").write_bytes(png(30, 90))
    answer = {"role": "assistant", "content": [text("A cat.")]}
    return jsonl(folder, *({"messages": [{"role": "user", "content": content}, answer]} for content in SHOWN))


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    return read_chats(written(tmp_path), skips_bad=False)[0]


def test_a_micro_batch_is_what_the_processor_makes_of_its_samples_together(processor: Any, samples: list[Sample]):
    made = encoder(processor)
    rows = made.alongside([made.encode(sample) for sample in samples])
    batch = collated(rows, pad_id=made.pad_id, pads_to=1, seq_len=4096)
    texts = [made.rendered(sample).text for sample in samples]
    images = [[opened(part.source, name="x") for part in sample.images] for sample in samples]
    theirs = processor(text=texts, images=images, padding=True, padding_side="right", return_tensors="pt")
    assert {*theirs} == {*batch} - {"labels"}
    assert all(torch.equal(batch[name], value) for name, value in theirs.items())


def test_the_answer_alone_is_learned(processor: Any, samples: list[Sample]):
    made = encoder(processor)
    assert {learned(made, made.encode(sample)) for sample in samples} == {"A cat.<|im_end|>"}
    first = question("Why?", "So.", sizes=((56, 56),))
    assert learned(made, made.encode(first)) == "So.<|im_end|>"


def test_lengths_are_known_to_planner_and_trainer_before_images_are_read(
    folder: Path, processor: Any, samples: list[Sample], tmp_path: Path
):
    made = encoder(processor)
    lengths = [made.encode(sample)["input_ids"].shape[1] for sample in samples]
    scan = scanned(made, samples)
    assert scan.lengths == lengths
    files = find_model(str(folder))
    planned = dataset(written(tmp_path), files)
    labels = [made.encode(sample)["labels"] for sample in samples]
    assert planned.learnt_tokens == scan.num_learnt == sum(int((one != IGNORED_LABEL).sum()) for one in labels)
    found = sample_shapes(planned, files, rules_of(None))
    assert [one.tokens for one in found.shapes] == lengths


def test_a_cut_spares_images_to_the_last_of_their_tokens(processor: Any):
    sample = question("Is it?", "A cat.", sizes=((56, 56), (56, 56)))
    ids = encoder(processor).encode(sample)["input_ids"][0]
    last = int((ids == processor.tokenizer.convert_tokens_to_ids(FENCE)).nonzero().max())
    cut = encoder(processor, last + 1).encode(sample)
    assert cut["input_ids"].shape[1] == last + 1
    for seq_len in (last, last - 1):
        with pytest.raises(TooLongError):
            encoder(processor, seq_len).encode(sample)
        assert scanned(encoder(processor, seq_len), [sample]).skipped == {sample.source}


def test_a_text_with_the_token_around_images_is_refused(folder: Path, processor: Any, tmp_path: Path):
    sample = question(f"{FENCE}?")
    with pytest.raises(InputError, match=f"the text has {FENCE}, which the processor writes around images"):
        encoder(processor).encode(sample)
    answer = {"role": "assistant", "content": "no"}
    bad = {"messages": [{"role": "user", "content": f"{FENCE}?"}, answer]}
    fine = {"messages": [{"role": "user", "content": "?"}, answer]}
    found = dataset(jsonl(tmp_path, bad, fine), find_model(str(folder)))
    assert (len(found.samples), found.num_bad) == (1, 1)
