"""Answers that are marked as good or bad: the forms of trainers, and preferences taken apart."""

from pathlib import Path

import pytest

from chat_files import ANSWER, jsonl
from vlmplan.chats.labelled import UNPAIRED_AT_ONCE, raw_labelled, read_labelled
from vlmplan.chats.samples import Sample
from vlmplan.errors import InputError

ASKED = [{"role": "user", "content": "What is it?"}]
BEFORE = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
FORMS = {
    "TRL": {"prompt": [*BEFORE, *ASKED], "completion": [ANSWER]},
    "ms-swift": {"messages": [*BEFORE, *ASKED, ANSWER]},
    "LLaMA-Factory": {
        "conversations": [
            {"from": "human", "value": "Hi."},
            {"from": "gpt", "value": "Hello."},
            {"from": "human", "value": "What is it?"},
            {"from": "gpt", "value": "A cat."},
        ],
    },
}


def texts(sample: Sample) -> list[str]:
    return [turn.text for turn in sample.turns]


@pytest.mark.parametrize("key", ["label", "kto_tag"])
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_is_what_follows_the_last_question_whatever_form_it_has(tmp_path: Path, form: str, key: str):
    found, report = read_labelled(jsonl(tmp_path, FORMS[form] | {key: False}), skips_bad=False)
    [one] = found
    assert texts(one.sample) == ["Hi.", "Hello.", "What is it?", "A cat."]
    assert one.sample.num_prompt_turns == 3
    assert one.is_desirable is False
    assert report.num_samples == 1


def test_texts_stay_texts(tmp_path: Path):
    line = {"prompt": "Two and two are", "completion": " four.", "label": True}
    [one] = read_labelled(jsonl(tmp_path, line), skips_bad=False)[0]
    assert one.sample.is_plain
    assert one.is_desirable


def test_preferences_are_taken_apart_chosen_answers_first(tmp_path: Path):
    count = UNPAIRED_AT_ONCE + 2
    lines = [{"prompt": "p", "chosen": f" a{i}", "rejected": f" b{i}"} for i in range(count)]
    found, report = read_labelled(jsonl(tmp_path, *lines), skips_bad=False)
    first, rest = range(UNPAIRED_AT_ONCE), range(UNPAIRED_AT_ONCE, count)
    named = [f" {letter}{i}" for part in (first, rest) for letter in "ab" for i in part]
    assert [one.sample.turns[1].text for one in found] == named
    assert [one.is_desirable for one in found] == [name.startswith(" a") for name in named]
    assert report.num_samples == 2 * count


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (FORMS["TRL"], "--task kto trains on answers with one label, true or false; it has none"),
        (FORMS["TRL"] | {"label": True, "kto_tag": True}, "it has label and kto_tag"),
        (FORMS["TRL"] | {"label": 1}, "label is 1; true or false is needed"),
        ({"messages": [*ASKED, ANSWER, *ASKED], "label": True}, "the last turn is no answer of the assistant's"),
    ],
)
def test_what_is_no_marked_answer_is_refused_by_name(line: dict, words: str):
    with pytest.raises(InputError, match=words):
        raw_labelled(line, source="data.jsonl:1")


def test_images_or_tools_are_read_and_both_together_are_refused():
    seen = {"messages": [{"role": "user", "content": "<image>What?"}, ANSWER], "images": ["a.png"], "label": True}
    tools = [{"type": "function", "function": {"name": "warmth", "parameters": {}}}]
    called = {"messages": [*ASKED, ANSWER], "tools": tools, "label": True}
    assert [raw_labelled(line, source="data.jsonl:1")[0] for line in (seen, called)] == [True, True]
    with pytest.raises(InputError, match="the sample shows images and has tools"):
        raw_labelled(seen | {"tools": tools}, source="data.jsonl:1")


def test_preferences_beside_marked_answers_are_refused(tmp_path: Path):
    pair = {"prompt": ASKED, "chosen": [ANSWER], "rejected": [{"role": "assistant", "content": "A dog."}]}
    with pytest.raises(InputError, match="has preferences and answers with a label; TRL reads all as the first"):
        read_labelled(jsonl(tmp_path, FORMS["TRL"] | {"label": True}, pair), skips_bad=False)


def test_a_dataset_info_names_the_column_of_labels(tmp_path: Path):
    (tmp_path / "dataset_info.json").write_text(
        '{"marked": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "said", '
        '"kto_tag": "is_good"}}}'
    )
    jsonl(tmp_path, {"said": FORMS["LLaMA-Factory"]["conversations"], "is_good": True})
    [one] = read_labelled(tmp_path, skips_bad=False)[0]
    assert (one.is_desirable, one.sample.num_prompt_turns) == (True, 3)
