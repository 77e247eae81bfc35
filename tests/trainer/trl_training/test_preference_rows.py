"""Rows of preferences with tools and thoughts, as TRL gets them and as its tokeniser writes them."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datasets")

import datasets

from chat_files import jsonl
from tool_chats import CALLING, TEMPLATE
from vlmplan.chats.labelled import read_labelled
from vlmplan.chats.preferences import read_preferences
from vlmplan.errors import InputError
from vlmplan_trainer.data.encode import Encoder, PlannedSamples
from vlmplan_trainer.models.processors import load_processor
from vlmplan_trainer.models.tiny import write_tiny_model
from vlmplan_trainer.trl_training.samples import _alike, _labelled_rows, _preference_rows, _refuse_unlike, text_dataset

ASKED = {"role": "user", "content": "Sure?"}
WORSE = {"role": "assistant", "content": "Cold.", "reasoning_content": "Hm."}
OTHER_CALL = {
    "role": "assistant",
    "tool_calls": [{"function": {"name": "rain", "arguments": {"in": 2, "deep": {"a": 1}}}}],
}


def test_what_a_message_says_and_what_it_does_not_comes_back_from_arrow_and_is_as_long_as_planned(tmp_path: Path):
    folder = write_tiny_model(tmp_path / "llama", "llama")
    thinks = "{{ message.reasoning_content or '' }}{{ 'calls' if message.tool_calls is defined }}{{ message.content }}"
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("{{ message.content }}", thinks, 1))
    messages = CALLING["messages"]
    file = jsonl(
        tmp_path,
        {"tools": CALLING["tools"], "chosen": messages, "rejected": [*messages[:3], WORSE]},
        {"messages": [*messages[:1], OTHER_CALL, messages[2], messages[3]], "rejected_response": "No idea."},
        {"prompt": [ASKED], "chosen": messages[3:], "rejected": [WORSE]},
    )
    processor = load_processor(str(folder), is_vision=False)
    encoder = Encoder(processor, PlannedSamples(seq_len=1000), model_type="llama")
    pairs, _ = read_preferences(file, skips_bad=False)
    rows, scan = _preference_rows(encoder, pairs)
    rows = _alike(rows, is_vision=False)
    made = text_dataset(datasets, rows)
    assert list(made) == rows
    lengths = [max(length_of(processor, row, row[key]) for key in ("chosen", "rejected")) for row in made]
    assert lengths == scan.lengths


def length_of(processor: Any, row: Any, answer: Any) -> int:
    """As ``tokenize_fn`` in TRL's ``dpo_trainer.py`` has it."""
    found = processor.apply_chat_template(row["prompt"] + answer, tools=row["tools"], tokenize=True, return_dict=True)
    return len(found["input_ids"])


def test_preferences_are_taken_apart_in_trls_order(tmp_path: Path):
    unpair = pytest.importorskip("trl").data_utils.unpair_preference_dataset
    folder = write_tiny_model(tmp_path / "llama", "llama")
    encoder = Encoder(load_processor(str(folder), is_vision=False), PlannedSamples(seq_len=1000), model_type="llama")
    pairs = [{"prompt": f"p{i}", "chosen": f" c{i}", "rejected": f" r{i}"} for i in range(1003)]
    found, _ = read_labelled(jsonl(tmp_path, *pairs), skips_bad=False)
    rows, _ = _labelled_rows(encoder, found)
    assert rows == list(unpair(datasets.Dataset.from_list(pairs)))


def test_tools_stand_beside_labels(tmp_path: Path):
    rows = [{"prompt": [ASKED], "completion": [OTHER_CALL], "label": False, "tools": CALLING["tools"]}]
    assert list(text_dataset(datasets, rows)) == rows


def test_rows_of_role_and_content_are_those_of_before():
    rows = [
        {"prompt": [ASKED], "chosen": [ASKED], "rejected": [ASKED]},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ]
    for some in (rows[:1], rows[1:]):
        assert text_dataset(datasets, some).features == datasets.Dataset.from_list(some).features


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompt": "a"}, {"prompt": [ASKED]}], "prompts that are texts and others that are messages"),
        ([{"prompt": [ASKED], "images": [1]}, {"prompt": [ASKED], "tools": [1]}], "others with tools; TRL's collator"),
    ],
)
def test_rows_that_trl_would_read_as_the_first_are_refused(rows: Any, words: str):
    with pytest.raises(InputError, match=words):
        _refuse_unlike("data.jsonl", rows, is_written=True)
