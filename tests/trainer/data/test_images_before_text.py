"""Samples of BLIP-2 and InstructBLIP: what the trainer makes of them is what the processor makes of them together."""

import json
from pathlib import Path

import pytest
import torch
from chat_cases import chat, learned, question
from published_folders import write_published

from chat_files import jsonl, png, text
from vlmplan.chats.samples import Sample, read_chats
from vlmplan.data_plan.lengths import sample_shapes
from vlmplan.data_rules import rules_of
from vlmplan.dataset import dataset
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches, collated
from vlmplan_trainer.data.encode import LeftOutError, PlannedSamples
from vlmplan_trainer.data.images import opened
from vlmplan_trainer.data.queried_images import QueriedImageEncoder
from vlmplan_trainer.data.read import encoder_class
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.models.processors import load_processor

FAMILIES = ("blip-2", "instructblip")
NUM_QUERIES = 4
QFORMER = ("qformer_input_ids", "qformer_attention_mask")
IMAGE = {"type": "image", "path": "a.png"}
ANSWER = {"role": "assistant", "content": [text("A cat.")]}
CHATS = [
    {"messages": [{"role": "user", "content": [IMAGE, text("What is it?")]}, ANSWER]},
    {"messages": [{"role": "user", "content": [text("What "), IMAGE, text("is it, as you see it now?")]}, ANSWER]},
]
WITHOUT_TEMPLATE = [
    {"image": "a.png", "text": "a photo of a cat"},
    {"prompt": [{"role": "user", "content": "Question: what? Answer:"}], "completion": [ANSWER], "images": ["a.png"]},
]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(params=[True, False], ids=["template", "none"])
def model(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Path:
    """With a template, and without one, as the published models are."""
    if request.param:
        return folder
    (tmp_path / "model").mkdir()
    for path in folder.iterdir():
        if path.name != "chat_template.jinja":
            (tmp_path / "model" / path.name).symlink_to(path)
    return tmp_path / "model"


def encoder(folder: Path, seq_len: int = 256) -> QueriedImageEncoder:
    family = json.loads((folder / "config.json").read_text())["model_type"]
    processor = load_processor(str(folder), is_vision=True)
    made = encoder_class(family)(processor, PlannedSamples(seq_len=seq_len), model_type=family)
    assert isinstance(made, QueriedImageEncoder)
    return made


def written(folder: Path, *, has_template: bool) -> Path:
    (folder / "a.png").write_bytes(png(60, 50))
    return jsonl(folder, *(CHATS if has_template else WITHOUT_TEMPLATE))


@pytest.fixture
def samples(model: Path, tmp_path: Path) -> list[Sample]:
    return read_chats(written(tmp_path, has_template=(model / "chat_template.jinja").exists()), skips_bad=False)[0]


def test_a_micro_batch_is_what_the_processor_makes_of_its_samples_together(model: Path, samples: list[Sample]):
    """The Q-Former, whose attention sees all of its text, reads what comes before the answer."""
    made = encoder(model)
    processor = made.processor
    rows = made.alongside([made.encode(sample) for sample in samples])
    batch = collated(rows, pad_id=made.pad_id, pads_to=1, seq_len=256)
    whole = [made.rendered(sample) for sample in samples]
    images = [opened(sample.images[0].source, name="x") for sample in samples]
    named = {"images": images, "padding": True, "padding_side": "right", "return_tensors": "pt"}
    theirs = dict(processor(text=[one.text for one in whole], **named))
    prompts = dict(processor(text=[one.text[: one.spans[0][0]] for one in whole], **named))
    theirs |= {name: prompts[name] for name in QFORMER if name in prompts}
    assert {*theirs} == {*batch} - {"labels"}
    assert all(torch.equal(batch[name], value) for name, value in theirs.items())
    assert (theirs["input_ids"] == made.shown_ids).sum(dim=1).tolist() == [NUM_QUERIES] * 2


def test_the_answer_alone_is_learned(model: Path, samples: list[Sample]):
    made = encoder(model)
    expected = {"A cat.<|im_end|>"} if made.has_template else {"A cat.<|im_end|>", "a photo of a cat<|im_end|>"}
    assert {learned(made, made.encode(sample)) for sample in samples} == expected


def test_lengths_are_known_to_planner_and_trainer_before_images_are_read(
    model: Path, samples: list[Sample], tmp_path: Path
):
    made = encoder(model)
    lengths = [made.encode(sample)["input_ids"].shape[1] for sample in samples]
    assert scanned(made, samples).lengths == lengths
    files = find_model(str(model))
    found = sample_shapes(dataset(written(tmp_path, has_template=made.has_template), files), files, rules_of(None))
    assert [one.tokens for one in found.shapes] == lengths


def test_a_chat_needs_a_template_and_says_so(folder: Path, tmp_path: Path):
    made = encoder(folder)
    made.processor.chat_template = made.tokenizer.chat_template = None
    bare = type(made)(made.processor, PlannedSamples(seq_len=256), model_type="blip-2")
    with pytest.raises(InputError, match="has no chat template"):
        bare.encode(question(sizes=((28, 28),)))


def test_a_cut_spares_the_image(folder: Path):
    sample = question("Is it?", "A cat. " * 20, sizes=((56, 56),))
    whole = encoder(folder).encode(sample)
    num_tokens = whole["input_ids"].shape[1]
    cut = encoder(folder, num_tokens - 2).encode(sample)
    assert torch.equal(cut["input_ids"], whole["input_ids"][:, :-2])
    with pytest.raises(LeftOutError):
        encoder(folder, NUM_QUERIES - 1).encode(sample)
    assert scanned(encoder(folder, NUM_QUERIES), [sample]).skipped == {sample.source}


def test_a_prompt_that_the_q_former_has_no_room_for_is_left_out_before_training(folder: Path):
    made = encoder(folder)
    sample = question("Is it? " * 8, sizes=((56, 56),))
    rendered = made.rendered(sample)
    prompt = rendered.text[: rendered.spans[0][0]]
    num_tokens = len(made.tokenizer(prompt)["input_ids"])
    reads = getattr(made.processor, "qformer_tokenizer", None)
    if reads is None:
        assert not scanned(encoder(folder, NUM_QUERIES + num_tokens + 1), [sample]).skipped
        return
    needed = len(reads(prompt)["input_ids"])
    assert needed > num_tokens + 1
    assert not scanned(encoder(folder, NUM_QUERIES + needed), [sample]).skipped
    short = scanned(encoder(folder, NUM_QUERIES + needed - 1), [sample])
    assert f"has {needed} tokens of the Q-Former" in short.sentences[0]


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (question("See <image>?", sizes=((28, 28),)), "the text has <image>"),
        (question(sizes=((28, 28), (28, 28))), "shows 2 images, but the model's processor writes the tokens of one"),
    ],
)
def test_what_the_processor_would_take_for_images_is_refused(folder: Path, sample: Sample, says: str, tmp_path: Path):
    with pytest.raises(InputError, match=says):
        encoder(folder).encode(sample)
    (tmp_path / "a.png").write_bytes(png(60, 50))
    said = [IMAGE] * len(sample.images) + [text(sample.turns[0].text)]
    data = jsonl(tmp_path, CHATS[0], {"messages": [{"role": "user", "content": said}, ANSWER]})
    found = dataset(data, find_model(str(folder)))
    assert (len(found.samples), found.num_bad) == (1, 1)


def test_a_text_among_images_has_no_row_of_pixels_and_alone_gets_a_blank(folder: Path):
    made = encoder(folder)
    texts = [chat(("user", "Why?"), ("assistant", "So."), source=f"a:{number}") for number in range(2)]
    shown = question(sizes=((56, 56),))
    rows = made.alongside([made.encode(sample) for sample in [*texts, shown]])
    batch = collated(rows, pad_id=made.pad_id, pads_to=8, seq_len=256)
    assert {len(batch[name]) for name in (*QFORMER, "pixel_values") if name in batch} == {1}
    shares = Shares(micro_batch=1, num_ranks=1, rank=0)
    batches = [*Batches([*texts, shown], made, shares)]
    assert all((one["input_ids"] == made.shown_ids).sum() == NUM_QUERIES for one in batches)
    assert all(len(one["pixel_values"]) == 1 for one in batches)


def test_a_processor_that_writes_no_tokens_is_refused(folder: Path):
    processor = encoder(folder).processor
    processor.num_query_tokens = None
    with pytest.raises(InputError, match=r"does not say num_query_tokens \(processor_config.json\)"):
        encoder_class("blip-2")(processor, PlannedSamples(seq_len=256), model_type="blip-2")
