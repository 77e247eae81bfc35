"""Samples of Llama 3.2 Vision: what the trainer makes of them is what the processor makes of them together."""

from typing import Any

import pytest
import torch
from chat_cases import question
from published_folders import write_published

from vlmplan.chats.samples import Sample
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches, collated
from vlmplan_trainer.data.cross_attention import CrossAttendedEncoder
from vlmplan_trainer.data.encode import IGNORED_LABEL, PlannedSamples
from vlmplan_trainer.data.images import opened
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.models.processors import load_processor

FAMILY = "mllama"
SIZES = [((56, 56),), ((90, 28), (20, 20)), ((28, 90),)]


@pytest.fixture(scope="module")
def processor(tmp_path_factory) -> Any:
    return load_processor(str(write_published(tmp_path_factory.mktemp("models") / FAMILY, FAMILY)), is_vision=True)


def encoder(processor: Any, seq_len: int = 256) -> CrossAttendedEncoder:
    return CrossAttendedEncoder(processor, PlannedSamples(seq_len=seq_len), model_type=FAMILY)


def samples() -> list[Sample]:
    return [question(answer="A cat. " * number, sizes=sizes) for number, sizes in enumerate(SIZES, start=1)]


def test_a_micro_batch_is_what_the_processor_makes_of_its_samples_together(processor: Any):
    made, shown = encoder(processor), samples()
    rows = made.alongside([made.encode(sample) for sample in shown])
    batch = collated(rows, pad_id=made.pad_id, pads_to=1, seq_len=256)
    texts = [super(CrossAttendedEncoder, made).rendered(sample).text for sample in shown]
    assert not any(processor.bos_token in text for text in texts)  # so that the processor writes it
    images = [[opened(part.source, name="x") for part in sample.images] for sample in shown]
    theirs = processor(
        text=texts, images=images, padding=True, padding_side="right", add_special_tokens=False, return_tensors="pt"
    )
    assert {*theirs} == {*batch} - {"labels"}
    for name, value in theirs.items():
        if name == "cross_attention_mask":  # the processor lets padding look at images
            value = value * theirs["attention_mask"][:, :, None, None]
        assert torch.equal(batch[name], value), name


def test_the_answer_alone_is_learned(processor: Any):
    made = encoder(processor)
    row = made.encode(samples()[1])
    learned = row["input_ids"][row["labels"] != IGNORED_LABEL]
    assert processor.tokenizer.decode(learned).startswith("A cat. A cat. ")


def test_what_is_cut_looks_at_as_many_tokens_as_it_has(processor: Any):
    whole = encoder(processor).encode(samples()[0])
    num_tokens = whole["input_ids"].shape[1] - 2
    row = encoder(processor, num_tokens).encode(samples()[0])
    assert row["cross_attention_mask"].shape[1] == row["input_ids"].shape[1] == num_tokens


def test_a_text_beside_images_looks_at_an_empty_one(processor: Any):
    made = encoder(processor)
    rows = made.alongside([made.encode(question(sizes=())), made.encode(samples()[0])])
    assert "pixel_values" not in made.encode(question(sizes=()))
    assert not rows[0]["cross_attention_mask"].any()
    assert not rows[0]["pixel_values"].any()
    assert rows[0]["aspect_ratio_mask"].tolist() == [[[1, 0, 0, 0]]]
    batch = collated(rows, pad_id=made.pad_id, pads_to=8, seq_len=256)
    assert len({value.shape[0] for value in batch.values()}) == 1


def test_lengths_are_known_before_images_are_read(processor: Any):
    made, shown = encoder(processor), [*samples(), question(sizes=())]
    lengths = [made.encode(sample)["input_ids"].shape[1] for sample in shown]
    assert scanned(made, shown).lengths == lengths


def test_micro_batches_of_texts_alone_have_images_where_the_data_has_some(processor: Any):
    made = encoder(processor)
    shown = [question(sizes=(), source=f"a:{number}") for number in range(7)] + samples()[:1]
    batches = list(Batches(shown, made, Shares(micro_batch=1, num_ranks=1, rank=0)))
    assert len(batches) == 8
    assert all("pixel_values" in batch for batch in batches)
