"""Samples as tensors: labels on what the assistant says and its end, image tokens never cut, nothing over the plan."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_cases import chat, learned, question
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from other_processors import FAMILIES
from tokenizers.processors import TemplateProcessing

from chat_files import png
from vlmplan.chats.samples import ImagePart, Sample, TextPart, Turn
from vlmplan.errors import InputError
from vlmplan_trainer.data.encode import (
    IGNORED_LABEL,
    SEQUENCE_KEYS,
    Encoded,
    Encoder,
    PlannedSamples,
    TooLongError,
    overlapping,
)
from vlmplan_trainer.data.scan import scanned

SAID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)
IMAGE_SIZES = st.lists(st.tuples(st.integers(20, 90), st.integers(20, 90)), max_size=2).map(tuple)


def encoder(processor: Any, *, model_type: str = "qwen2_vl", skips_bad: bool = False, **changes: Any) -> Encoder:
    planned = PlannedSamples(**{"seq_len": 4096, "image_size": (56, 56)} | changes)
    return Encoder(processor, planned, model_type=model_type, skips_bad=skips_bad)


def text_encoder(tokenizer: Any, **changes: Any) -> Encoder:
    return encoder(tokenizer, **{"model_type": "llama", "image_size": None, **changes})


# Labels


@given(SAID, SAID, SAID)
def test_labels_are_on_the_answers_and_their_ends_alone(qwen: Any, asked: str, first: str, second: str):
    made = encoder(qwen)
    sample = chat(("user", asked), ("assistant", first), ("user", asked), ("assistant", second), sizes=((56, 56),))
    assert learned(made, made.encode(sample)) == f"{first}<|im_end|>{second}<|im_end|>"


@given(SAID, SAID)
def test_a_tokenizer_alone_labels_the_same_way(llama: Any, asked: str, answer: str):
    made = text_encoder(llama)
    encoded = made.encode(question(asked, answer))
    assert learned(made, encoded) == f"{answer.strip()}<|eot_id|>"
    assert set(encoded) == {"input_ids", "attention_mask", "labels"}


def test_what_is_encoded_is_what_the_library_makes_of_the_chat(llama: Any):
    sample = chat(("system", "Hm."), ("user", "What?"), ("assistant", "That."))
    messages = [{"role": turn.role, "content": turn.text} for turn in sample.turns]
    expected = llama.apply_chat_template(messages, return_tensors="pt", return_dict=True)["input_ids"]
    assert torch.equal(text_encoder(llama).encode(sample)["input_ids"], expected)


# Labels of a prompt and its completion: TRL's ``tokenize_fn`` (trl/trainer/sft_trainer.py) written again. All tokens
# after those of the prompt are the completion's, and the loss is on them alone (``completion_only_loss``).


def completion_by_trl(prompt: list[int], both: list[int]) -> tuple[list[int], list[int]]:
    assert both[: len(prompt)] == prompt
    return both, [IGNORED_LABEL] * len(prompt) + both[len(prompt) :]


def as_lists(encoded: Encoded) -> tuple[list[int], list[int]]:
    return encoded["input_ids"][0].tolist(), encoded["labels"][0].tolist()


@given(SAID, SAID, SAID)
def test_of_a_prompt_of_messages_the_loss_is_on_the_completion_as_in_trl(llama: Any, asked: str, first: str, last: str):
    turns = (("system", "Hm."), ("user", asked), ("assistant", first), ("user", asked), ("assistant", last))
    messages = [{"role": role, "content": said} for role, said in turns]
    sample = replace(chat(*turns), num_prompt_turns=4)
    ids = {"tokenize": True, "return_dict": True}
    prompt = llama.apply_chat_template(messages[:4], add_generation_prompt=True, **ids)["input_ids"]
    both = llama.apply_chat_template(messages, **ids)["input_ids"]
    assert as_lists(text_encoder(llama).encode(sample)) == completion_by_trl(prompt, both)


@pytest.mark.parametrize("has_bos", [False, True])
@given(said=SAID, end=st.sampled_from(["", "<|eot_id|>"]))
def test_of_a_prompt_that_is_a_text_the_loss_is_on_the_completion_and_its_end_as_in_trl(
    llama: Any, has_bos: bool, said: str, end: str
):
    tokenizer = copy.deepcopy(llama)
    tokenizer.chat_template = None
    if has_bos:
        bos = ("<|begin_of_text|>", tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    sample = replace(question("The sky: ", f"{said.strip()}{end}"), num_prompt_turns=1, is_plain=True)
    prompt = tokenizer("The sky: ")["input_ids"]
    both = tokenizer(f"The sky: {said.strip()}<|eot_id|>")["input_ids"]
    assume(both[: len(prompt)] == prompt)  # TRL warns where the two are cut in another way
    assert (prompt[0] == tokenizer.bos_token_id) is has_bos
    made = text_encoder(tokenizer)
    assert as_lists(made.encode(sample)) == completion_by_trl(prompt, both)
    assert scanned(made, [sample]).lengths == [len(both)]


def test_a_prompt_with_images_is_learnt_from_its_completion_on(qwen: Any):
    turns = (("user", "What?"), ("assistant", "A dog."), ("user", "Sure?"), ("assistant", "A cat."))
    made = encoder(qwen)
    whole = chat(*turns, sizes=((56, 56),))
    assert learned(made, made.encode(whole)) == "A dog.<|im_end|>A cat.<|im_end|>"
    assert learned(made, made.encode(replace(whole, num_prompt_turns=3))) == "A cat.<|im_end|>\n"


def test_labels_are_the_tokens_themselves(qwen: Any):
    encoded = encoder(qwen).encode(question(sizes=((56, 56),)))
    kept = encoded["labels"] != IGNORED_LABEL
    assert torch.equal(encoded["labels"][kept], encoded["input_ids"][kept])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=9), st.integers(0, 20), st.integers(0, 9))
def test_a_token_belongs_to_a_span_if_they_share_a_character(steps: list, first: int, length: int):
    offsets, place = [], 0
    for gap, width in steps:
        offsets.append((place + gap, place + gap + width))
        place += gap + width
    found = overlapping(torch.tensor(offsets).reshape(-1, 2), [(first, first + length)])
    wanted = [bool(set(range(*offset)) & set(range(first, first + length))) for offset in offsets]
    assert found.tolist() == wanted


# Images


def test_images_come_in_their_order_with_their_tokens(qwen: Any):
    encoded = encoder(qwen).encode(question(sizes=((56, 56), (28, 56))))
    assert encoded["image_grid_thw"].tolist() == [[1, 4, 4], [1, 4, 2]]
    assert encoded["pixel_values"].shape == (4 * 4 + 4 * 2, 3 * 2 * 14 * 14)
    assert int(encoded["mm_token_type_ids"].sum()) == (4 * 4 + 4 * 2) // (2 * 2)
    assert int((encoded["input_ids"] == qwen.image_token_id).sum()) == (4 * 4 + 4 * 2) // (2 * 2)


def test_an_image_larger_than_the_plans_becomes_no_more_than_the_plans(qwen: Any):
    encoded = encoder(qwen).encode(question(sizes=((400, 400),)))
    assert encoded["image_grid_thw"].tolist() == [[1, 4, 4]]


def test_a_sample_without_images_has_no_pixels(qwen: Any):
    assert not {"pixel_values", "image_grid_thw"} & set(encoder(qwen).encode(question()))


@pytest.mark.parametrize("family", FAMILIES)
def test_processors_of_other_families_label_the_answers_too(family: str):
    made = encoder(FAMILIES[family](), model_type=family, image_size=(56, 56))
    for sizes in [(), ((56, 56),), ((28, 90), (56, 56))]:
        encoded = made.encode(question(sizes=sizes))
        assert learned(made, encoded) == "A cat.<|im_end|>"
        assert ("pixel_values" in encoded) is bool(sizes)


def test_gemmas_token_types_are_kept_because_its_forward_wants_them():
    encoded = encoder(FAMILIES["gemma3"](), model_type="gemma3").encode(question(sizes=((56, 56),)))
    assert int(encoded["token_type_ids"].sum()) == 4


# The plan's length


@given(SAID, st.integers(1, 80))
def test_a_cut_keeps_the_beginning_and_is_counted(llama: Any, answer: str, seq_len: int):
    whole = text_encoder(llama).encode(question("Q", answer))
    made = text_encoder(llama, seq_len=seq_len)
    encoded = made.encode(question("Q", answer))
    assert all(torch.equal(encoded[name], whole[name][:, :seq_len]) for name in whole)
    assert made.num_truncated == (whole["input_ids"].shape[1] > seq_len)


@settings(max_examples=40)
@given(IMAGE_SIZES, st.integers(10, 60))
def test_image_tokens_are_whole_or_the_sample_is_left_out(qwen: Any, sizes: tuple, seq_len: int):
    made = encoder(qwen, seq_len=seq_len)
    sample = question(answer="A cat. " * 20, sizes=sizes)
    scan = scanned(made, [sample])
    try:
        encoded = made.encode(sample)
    except TooLongError:
        assert scan.num_skipped == made.num_skipped == 1
    else:
        assert encoded["input_ids"].shape[1] <= seq_len
        num_images = int((encoded["input_ids"] == qwen.image_token_id).sum())
        assert num_images == sum(made.meter.num_tokens(made.fit(size).canvas) for size in sizes)
        nothing_left = learned(made, encoded) == ""
        assert (scan.num_skipped == 1) is nothing_left


@pytest.mark.parametrize("sizes", [(), ((56, 56),), ((28, 56), (56, 28))])
def test_exactly_the_samples_that_leave_something_to_learn_are_kept(qwen: Any, sizes: tuple):
    sample = question(sizes=sizes)
    whole = encoder(qwen).encode(sample)
    last_image = max((whole["input_ids"][0] == qwen.image_token_id).nonzero().flatten().tolist(), default=0)
    first_label = int((whole["labels"][0] != IGNORED_LABEL).nonzero()[0])
    for seq_len in range(2, whole["input_ids"].shape[1] + 2):
        scan = scanned(encoder(qwen, seq_len=seq_len), [sample])
        assert len(scan.samples) == (first_label < seq_len)
        for sentence in scan.sentences:
            assert ("images do not fit" in sentence) is (last_image >= seq_len and bool(sizes))


@settings(max_examples=30)
@given(st.sampled_from([*FAMILIES, "qwen2_vl"]), SAID, IMAGE_SIZES, st.integers(20, 200))
def test_the_survey_knows_the_length_of_every_sample_without_opening_an_image(
    qwen: Any, family: str, said: str, sizes: tuple, seq_len: int
):
    processor = qwen if family == "qwen2_vl" else FAMILIES[family]()
    made = encoder(processor, model_type=family, seq_len=seq_len)
    sample = question(said, sizes=sizes)
    scan = scanned(made, [sample])
    for length in scan.lengths:
        assert length == made.encode(sample)["input_ids"].shape[1]
    assert scan.num_truncated == made.num_truncated


# What is left out and what is bad


def survey_of(made: Encoder, *bad: Sample) -> list[str]:
    """The sentences of ``bad`` samples among good ones."""
    good = question(source="good:1")
    scan = scanned(made, [good, *bad, good])
    assert (scan.samples, scan.num_skipped) == ([good, good], len({sample.source for sample in bad}))
    return list(scan.sentences)


def test_more_images_than_planned_are_left_out_and_counted(qwen: Any):
    made = encoder(qwen, images_per_sample=1)
    [sentence] = survey_of(made, question(sizes=((28, 28), (28, 28))))
    assert sentence == "some.jsonl:1: the sample shows 2 images, but the plan has --images-per-sample 1"
    assert made.num_skipped == 1


def test_a_sample_whose_answer_would_be_cut_away_is_left_out(llama: Any):
    [sentence] = survey_of(text_encoder(llama, seq_len=60), question("why " * 60))
    assert "the assistant's first word comes after --seq-len 60 tokens" in sentence


BAD = {
    "an image for a text model": (
        question(sizes=((28, 28),)),
        "the sample shows an image, but the model takes text only",
    ),
    "the image token in a text": (question("Look: <|image_pad|>"), "1 times <|image_pad|>"),
    "a strip": (question(sizes=((9000, 9),)), "refused by the model's image processor"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sample_stops_before_training_or_is_left_out(name: str, qwen: Any, llama: Any):
    sample, sentence = BAD[name]
    for skips_bad in (False, True):
        if "text model" in name:
            made = text_encoder(llama, skips_bad=skips_bad)
        else:
            made = encoder(qwen, image_size=None, skips_bad=skips_bad)
        if skips_bad:
            [found] = survey_of(made, sample)
            assert found.startswith("some.jsonl:1: ")
            assert sentence in found
        else:
            with pytest.raises(InputError, match=r"^some.jsonl:1: .*--skip-bad-samples leaves such samples out"):
                scanned(made, [question(), sample])


def test_an_image_that_turns_out_broken_stops_training_or_teaches_nothing(qwen: Any, tmp_path: Path):
    file = tmp_path / "a.png"
    file.write_bytes(png(56, 56)[:-30])
    turns = (
        Turn(role="user", content=(ImagePart(source=file, width=56, height=56),)),
        Turn(role="assistant", content=(TextPart(text="A cat."),)),
    )
    sample = Sample(source="some.jsonl:4", turns=turns)
    with pytest.raises(InputError, match=r"^some.jsonl:4: image 1 cannot be read"):
        encoder(qwen).encode_or_nothing(sample)
    made = encoder(qwen, skips_bad=True)
    assert made.encode_or_nothing(sample)["labels"].tolist() == [[IGNORED_LABEL]]
    assert made.num_skipped == 1


def test_a_survey_says_what_is_cut_left_out_and_made_smaller(qwen: Any):
    made = encoder(qwen, seq_len=40, images_per_sample=1)
    samples = [
        question(source="a:1"),
        question(source="a:2", answer="long " * 40),
        question(source="a:3", sizes=((90, 90),)),
        question(source="a:4", sizes=((28, 28), (28, 28))),
    ]
    scan = scanned(made, samples)
    assert (scan.num_images_reduced, len(scan.sentences)) == (1, 1)
    assert scan.sentences[0].startswith("a:4: ")
    assert [scan.truncated, scan.skipped] == [{"a:2"}, {"a:4"}]


# Models that cannot be used


@pytest.mark.parametrize("model_type", ["llama", "no_such"])
def test_a_vision_model_that_cannot_be_trained_is_refused_by_name(model_type: str, qwen: Any):
    with pytest.raises(InputError, match=model_type):
        encoder(qwen, model_type=model_type)


@pytest.mark.sweep
def test_a_tokenizer_that_knows_no_places_is_refused():
    from transformers import CanineTokenizer

    with pytest.raises(InputError, match=r"a fast tokenizer .* is needed"):
        text_encoder(CanineTokenizer())


def test_a_processor_that_does_not_say_where_it_put_image_tokens_is_refused_at_the_first_image(qwen: Any):
    class Silent(type(qwen)):
        def __call__(self, *inputs: Any, return_text_replacement_offsets: bool = False, **options: Any) -> Any:
            return super().__call__(*inputs, **options)

    made = encoder(Silent(qwen.image_processor, qwen.tokenizer, chat_template=qwen.chat_template))
    assert learned(made, made.encode(question())) == "A cat.<|im_end|>"
    with pytest.raises(InputError, match="Silent does not say where it put image tokens"):
        made.encode(question(sizes=((28, 28),)))


def test_the_blank_image_has_tokens_and_pixels_and_no_label(qwen: Any):
    blank = encoder(qwen).blank_image
    assert int((blank["input_ids"] == qwen.image_token_id).sum()) == 1
    assert set(blank["labels"].flatten().tolist()) == {IGNORED_LABEL}
    assert {"pixel_values", "image_grid_thw", "mm_token_type_ids"} <= set(blank)
    assert all(blank[name].shape[0] == 1 for name in SEQUENCE_KEYS if name in blank)
