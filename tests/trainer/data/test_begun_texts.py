"""Samples of Molmo 2, whose processor begins every text by itself and says of every token what it is of."""

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from chat_cases import learned, question
from other_processors import FAMILIES, template, tokenizer

from vlmplan.chats.samples import Sample
from vlmplan.dataset.counting import ExactCounter
from vlmplan.dataset.image_texts import IMAGE_TEXTS
from vlmplan.dataset.model_texts import ModelTexts
from vlmplan.sampler import Shares
from vlmplan_trainer.data.batches import Batches
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.data.read import encoder_class
from vlmplan_trainer.data.scan import scanned
from vlmplan_trainer.processors.processing import processor_for

FAMILY = "molmo2"
NAMES = ("<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<frame_start>", "<im_end>", "<frame_end>")
SIZES = [(), ((56, 56),), ((90, 400), (56, 56))]
needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")


@pytest.fixture(scope="module")
def words() -> Any:
    made = tokenizer(*NAMES, "<im_low>", image_token="<|image|>", video_token="<|video|>")
    assert made.bos_token is None  # so that the token that ends a text begins it
    return made


@pytest.fixture(scope="module")
def processor(words: Any) -> Any:
    from transformers import AutoConfig
    from transformers.models.molmo2.processing_molmo2 import Molmo2Processor

    class WithoutVideos(Molmo2Processor):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return None

    images = processor_for(AutoConfig.for_model(FAMILY), None).image_processor
    return WithoutVideos(images, None, words, chat_template=template("<|image|>"))


@pytest.fixture(scope="module")
def made(processor: Any) -> Encoder:
    return encoder_class(FAMILY)(processor, PlannedSamples(seq_len=8192), model_type=FAMILY, skips_bad=True)


def samples() -> list[Sample]:
    return [question(answer="A cat. " * number, sizes=sizes) for number, sizes in enumerate(SIZES, start=1)]


@needs_torchvision
def test_the_answer_and_its_end_alone_are_learned(made: Encoder):
    assert [learned(made, made.encode(sample)) for sample in samples()] == [
        "A cat. " * number + "<|im_end|>" for number in (1, 2, 3)
    ]


@needs_torchvision
def test_ids_are_those_that_the_processor_makes_and_lengths_are_known_before_images_are_read(made: Encoder):
    text = Encoder.rendered(made, samples()[0]).text
    theirs = made.processor(text=[text], return_tensors="pt")
    row = made.encode(samples()[0])
    assert torch.equal(row["input_ids"], theirs["input_ids"])
    assert row["input_ids"][0, 0] == made.tokenizer.eos_token_id
    lengths = [made.encode(sample)["input_ids"].shape[1] for sample in samples()]
    assert scanned(made, samples()).lengths == lengths


@needs_torchvision
def test_a_plan_of_the_data_counts_as_many_tokens_and_learns_as_many(made: Encoder):
    texts = ModelTexts(
        source="tokenizer.json",
        tokenizer=made.tokenizer.backend_tokenizer.to_str(),
        template=template("<|image|>"),
        special_tokens={"eos_token": made.tokenizer.eos_token},
        takes_parts=True,
        placeholders=(made.processor.image_token_id,),
        images=IMAGE_TEXTS[FAMILY],
    )
    sample = samples()[0]
    row = made.encode(sample)
    [found] = ExactCounter(texts).counts([sample])
    assert found == (row["input_ids"].shape[1], int((row["labels"] >= 0).sum()))


@needs_torchvision
def test_a_micro_batch_of_stand_ins_alone_says_of_every_token_what_it_is_of(made: Encoder, monkeypatch):
    """Without which ``Molmo2Model`` is not trained; what is bad of a text is found when it is reached."""
    batches = Batches([question()] * 2, made, Shares(micro_batch=2, num_ranks=1, rank=0, grad_accum=1))
    monkeypatch.setattr(made, "encode", lambda sample: made._refuse_other_image_tokens(sample, "<|image|>"))
    [batch] = batches
    assert not (batch["labels"] >= 0).any()
    assert batch["mm_token_type_ids"].shape == batch["input_ids"].shape


@pytest.mark.parametrize("family", FAMILIES)
def test_what_stands_for_a_bad_sample_has_what_texts_have(family: str):
    made = Encoder(FAMILIES[family](), PlannedSamples(seq_len=128), model_type=family)
    assert made.nothing.keys() == made.encode(question()).keys()
