"""Layouts of samples that LLaMA-Factory, ms-swift, TRL, axolotl, Unsloth and OpenAI document: each is read, or refused
with one sentence."""

from pathlib import Path
from typing import Any

import pytest

from chat_files import ANSWER, asked, jsonl, png
from vlmplan.chats.data_files import data_files
from vlmplan.chats.formats import raw_sample
from vlmplan.chats.references import Reference
from vlmplan.chats.samples import read_chats
from vlmplan.errors import InputError

USER = {"role": "user", "content": "What?"}
CALL = {"name": "f", "arguments": "{}"}
IMAGE = Reference(text="a.png")
TEXTS: dict[str, dict[str, Any]] = {
    **{
        f"{asking}, {answering}": {asking: "What?", answering: "A cat."}
        for asking, answering in (
            ("question", "answer"),
            ("problem", "solution"),
            ("input", "output"),
            ("prompt", "response"),
            ("query", "target"),
        )
    },
    "instruction, response": {"instruction": "What?", "input": "", "response": "A cat.", "context": ""},
    "conversation": {"conversation": [{"human": "What?", "assistant": "A cat."}]},
    "texts": {"texts": [{"user": "What?", "assistant": "A cat.", "source": "x"}]},
    "UltraChat": {"prompt": "What?", "prompt_id": "1", "messages": [USER, ANSWER]},
    "null columns": {"prompt": None, "completion": None, "images": None, "tools": None, "messages": [USER, ANSWER]},
    "model": {"messages": [USER, {**ANSWER, "role": "model"}]},
    "bard": {"conversations": [{"from": "human", "value": "What?"}, {"from": "bard", "value": "A cat."}]},
    "parts without a type": {"messages": [{**USER, "content": [{"text": "What?"}]}, ANSWER]},
    "LLaMA-Factory 1": {"messages": [{**USER, "content": [{"type": "text", "value": "What?"}]}, ANSWER]},
}
SEEN: dict[str, dict[str, Any]] = {
    "question": {"image": "a.png", "question": "What?", "answer": "A cat."},
    "the Cauldron": {"images": ["a.png"], "texts": [{"user": "What?", "assistant": "A cat."}]},
    "file_name": {"file_name": "a.png", "messages": [USER, ANSWER]},
    "file_names": {"file_names": ["a.png"], "messages": [{**USER, "content": "<image>What?"}, ANSWER]},
    "image_file_name": {"image_file_name": "a.png", "question": "What?", "answer": "A cat."},
    "qwen-vl-utils": {"messages": [{**USER, "content": [{"image": "a.png"}, {"text": "What?"}]}, ANSWER]},
    "Unsloth": asked({"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}),
}


def read(values: dict[str, Any]) -> Any:
    return raw_sample(values, source="some.jsonl:7")


@pytest.mark.parametrize("form", TEXTS)
def test_other_names_are_those_of_a_chat(form: str):
    assert read(TEXTS[form]).turns == read(asked("What?")).turns


@pytest.mark.parametrize("form", SEEN)
def test_images_come_before_what_is_asked_of_them(form: str):
    assert read(SEEN[form]).turns[0].content == (IMAGE, "What?")
    assert read(SEEN[form]).turns[1:] == read(asked("What?")).turns[1:]


def test_an_image_of_anthropics_is_base64():
    source = {"type": "base64", "media_type": "image/png", "data": "xx"}
    [first, _] = read(asked({"type": "image", "source": source})).turns
    assert first.content == (Reference(text="xx", is_base64=True),)


@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_a_systems_prompt_comes_first(key: str):
    for values in ({"question": "What?", "answer": "A cat."}, {"messages": [USER, ANSWER]}):
        assert read({key: "Be brief.", **values}).turns[0].content == ("Be brief.",)
    [system, *_] = read({"messages": [{"role": "developer", "content": "Be brief."}, USER, ANSWER]}).turns
    assert (system.role, system.content) == ("system", ("Be brief.",))


def test_functions_as_openai_called_tools_before_are_tools():
    calling, answering = (
        {**ANSWER, "content": None, "function_call": CALL},
        {"role": "function", "name": "f", "content": "1"},
    )
    old = read({"functions": [{"name": "f"}], "messages": [USER, calling, answering, ANSWER]})
    calls = {**ANSWER, "content": None, "tool_calls": [{"function": CALL}]}
    new = read({"tools": [{"name": "f"}], "messages": [USER, calls, {**answering, "role": "tool"}, ANSWER]})
    assert (old.turns, old.tools) == (new.turns, new.tools)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"text": "A document."}, "one is needed: messages.*; a text that answers nothing is for pretraining"),
        ({"input_ids": [1], "labels": [1]}, "input_ids is .*; samples are texts"),
        ({"segments": [{"label": True, "text": "a"}]}, "segments is .*written by the model's chat template"),
        ({"prompt": "a", "completions": ["b"], "labels": [True]}, "completions is .*marked one by one"),
        ({"contents": [{"role": "user", "parts": []}]}, "contents is .*role and a content"),
        (
            {"question": "What?", "answer": "A cat.", "context": "A photo."},
            "context is .*; it is not read beside question",
        ),
        ({"question": "What?", "answer": "A", "choices": ["A", "B"]}, "choices is .*; it is not read beside question"),
        ({"problem": "1", "solution": "2", "answer": "3"}, "solution is .*has answer and solution; one of them"),
        ({"query": "1", "question": "2", "answer": "3"}, "question is .*has query and question; one of them"),
        (asked("x", chat_template_kwargs={"enable_thinking": False}), "chat_template_kwargs is .*nothing else"),
        ({"article": "a", "summary": "b"}, r"has none of messages.*; a dataset_info\.json .* columns of other names"),
        ({"prompt;completion": "a;b"}, r'has none of messages, .*, but "prompt;completion"; one is needed'),
        (dict.fromkeys("abcdefg", "x"), 'but "a", "b", "c", "d", "e", "f", ...; one is needed'),
        ({"messages": [ANSWER]}, "the assistant speaks before the user"),
    ],
    ids=str,
)
def test_what_is_no_sample_to_fine_tune_on_is_one_sentence(values: dict[str, Any], words: str):
    with pytest.raises(InputError, match=words) as caught:
        read(values)
    assert str(caught.value).startswith("some.jsonl:7: ")


def test_a_folder_of_images_is_read_by_its_metadata(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png(12, 8))
    jsonl(tmp_path, {"file_name": "a.png", "text": "A cat."}, name="metadata.jsonl")
    [file] = data_files(tmp_path)
    [sample], report = read_chats(file.path, skips_bad=False)
    assert [(image.width, image.height) for image in sample.images] == [(12, 8)]
    assert report.forms == {"image, text": 1}


def test_a_folder_without_samples_says_what_it_has(tmp_path: Path):
    (tmp_path / "train-00000.tar").write_bytes(b"")
    with pytest.raises(InputError, match=r"no file of samples, .jsonl, .*it has train-00000\.tar "):
        data_files(tmp_path)
