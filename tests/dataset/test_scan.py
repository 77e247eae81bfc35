"""Files of samples looked at once: what is found, what is left out, and that it is kept between runs."""

import json
import os
import time
from pathlib import Path

import pytest

from chat_files import asked, jsonl, png, png_header
from vlmplan.chats.data_files import data_files
from vlmplan.data_rules import rules_of
from vlmplan.dataset import dataset, scan
from vlmplan.dataset.media import MediaReading, media_reading, sample_counter
from vlmplan.dataset.model_texts import model_texts
from vlmplan.dataset.scan import LEAST_BYTES
from vlmplan.dataset.unseen import dataset_of_text
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.models import find_model

MODEL = find_model("llama-3.2-1b")
SEES = find_model("qwen2-vl-2b")


def shown(name: str) -> dict:
    return asked({"type": "image", "path": name})


# What is bad


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (json.dumps(asked("a")).replace('"a"', '"\\ud800"'), "half of a character"),
        ('{"messages": []}', "no turn is the assistant's"),
        ('{"text": "a"}', "none of messages"),
        ('{"messages": [{"role": "robot", "content": "Beep."}]}', "one of system, user, assistant, tool, tool_call"),
        (json.dumps({**asked("a"), "videos": ["a.mp4"]}), "video and sound are not"),
        (json.dumps(shown("missing.png")), "is no file in"),
        (json.dumps(shown("pipe")), "is no file in"),
        (json.dumps(shown("/dev/zero")), "is no file in"),
        (json.dumps(shown("https://example.com/a.png")), "never from the net"),
        (json.dumps(shown("lies.png")), "larger than the 89,478,485 pixels"),
        (json.dumps(shown("empty.png")), "cannot be read as an image"),
        ('{"a": ' + "1" * 5000 + "}", "thousands of digits"),
        ("\x00", "is not JSON"),
    ],
)
def test_a_bad_sample_is_left_out_with_a_sentence(line: str, sentence: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "lies.png").write_bytes(png_header(60_000, 60_000))
    (tmp_path / "empty.png").write_bytes(b"")
    path = jsonl(tmp_path, asked("good"), line, asked("good too"))
    found = dataset(path, SEES)
    assert (len(found.samples), found.num_bad) == (2, 1)
    assert found.sentences[0].startswith(f"{path}:2")
    assert sentence in found.sentences[0]


def test_a_file_without_a_good_sample_is_refused_with_the_first_bad_one(tmp_path):
    path = jsonl(tmp_path, "{", "{")
    with pytest.raises(InputError, match=r"has no sample to train on; all of its 2 are bad, the first: .*:1 is not"):
        dataset(path, MODEL)


def test_the_first_bad_sample_is_the_first_of_the_file_whatever_is_wrong_with_it(tmp_path):
    """Some are found when they are read, others when their tokens are counted."""
    hears = find_model("whisper-small")
    path = jsonl(tmp_path, asked("no sound"), "{", asked("no sound"))
    media = media_reading(hears, rules_of(None))
    first = r"all of its 3 are bad, the first: .*jsonl:1: .* 0 sounds"
    with pytest.raises(InputError, match=first):
        dataset(path, hears, media=media)
    with pytest.raises(InputError, match=first):
        dataset_of_text("a.jsonl", path.read_bytes(), sample_counter(model_texts(hears), media), (8, 8))


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "missing.jsonl"])
def test_what_is_no_file_is_refused_without_waiting(name: str, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match=r"cannot be read|does not exist"):
        dataset(tmp_path / name, MODEL)


def test_an_image_that_lies_in_its_header_has_the_size_that_it_says(tmp_path):
    (tmp_path / "a.png").write_bytes(png(13, 7)[:60])
    assert dataset(jsonl(tmp_path, shown("a.png")), SEES).samples[0].images == ((13, 7),)


# Which files


def test_of_a_folder_every_file_is_read_in_order(tmp_path):
    jsonl(tmp_path, asked("b"), name="b.jsonl")
    (tmp_path / "a.json").write_text(json.dumps([asked("a"), asked("a")]))
    (tmp_path / "notes.txt").write_text("nothing")
    assert [file.path.name for file in data_files(tmp_path)] == ["a.json", "b.jsonl"]
    assert len(dataset(tmp_path, MODEL).samples) == 3
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match=r"no dataset_info\.json and no file of samples"):
        data_files(tmp_path / "none")


INFO = {
    "poems": {"file_name": "poems.json", "columns": {"prompt": "ask", "response": "say", "system": "sys"}},
    "talks": {
        "file_name": "talks.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "turns", "images": "pictures"},
        "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "me", "assistant_tag": "you"},
    },
    "far": {"hf_hub_url": "somebody/something"},
    "pairs": {"file_name": "poems.json", "ranking": True},
    "films": {"file_name": "poems.json", "columns": {"videos": "films"}},
}


@pytest.fixture
def described(tmp_path: Path) -> Path:
    (tmp_path / "dataset_info.json").write_text(json.dumps({name: INFO[name] for name in ("poems", "talks", "far")}))
    (tmp_path / "poems.json").write_text(json.dumps([{"ask": "x" * 32, "say": "y" * 64, "sys": "z" * 32}]))
    (tmp_path / "a.png").write_bytes(png(9, 5))
    turns = [{"who": "me", "what": "<image>What?"}, {"who": "you", "what": "A."}, {"who": "function_call", "what": "f"}]
    jsonl(tmp_path, {"turns": turns, "pictures": ["a.png"]}, name="talks.jsonl")
    return tmp_path


def test_a_dataset_info_names_files_and_columns(described: Path):
    found = dataset(described, SEES)
    assert found.forms == {"instruction, output (Alpaca)": 1, "conversations (LLaVA)": 1}
    assert found.samples[0].text_tokens == (32 + 64 + 32) * 10 // 32 + 3 * 5
    assert found.samples[1].images == ((9, 5),)
    assert len(dataset(described, SEES, names=["poems"]).samples) == 1
    assert len(dataset(described / "dataset_info.json", SEES, names=["talks"]).samples) == 1


def test_a_data_set_that_is_not_there_is_refused_by_name(described: Path):
    with pytest.raises(UnknownNameError, match="unknown data set 'poem'; did you mean 'poems'"):
        data_files(described, ["poem"])
    with pytest.raises(InputError, match="far has its samples elsewhere \\(hf_hub_url\\)"):
        data_files(described, ["far"])


@pytest.mark.parametrize(
    ("name", "why"),
    [("pairs", "has ranking; .* --task dpo trains"), ("films", "has videos; vlmplan has no")],
)
def test_what_is_not_planned_is_refused_by_name(name: str, why: str, described: Path):
    (described / "dataset_info.json").write_text(json.dumps(INFO))
    with pytest.raises(InputError, match=why):
        data_files(described, [name])


RANKED = {
    "texts": {
        "file_name": "texts.json",
        "ranking": True,
        "columns": {"prompt": "ask", "chosen": "good", "rejected": "bad", "system": "sys"},
    },
    "turns": {
        "file_name": "turns.json",
        "formatting": "sharegpt",
        "ranking": True,
        "columns": {"messages": "said", "chosen": "good", "rejected": "bad", "images": "pictures"},
        "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "me", "assistant_tag": "you"},
    },
    "unnamed": {"file_name": "texts.json", "ranking": True, "columns": {"prompt": "ask"}},
}


def test_rankings_of_a_dataset_info_are_preferences_where_dpo_is_planned(tmp_path: Path):
    (tmp_path / "dataset_info.json").write_text(json.dumps(RANKED))
    (tmp_path / "texts.json").write_text(json.dumps([{"ask": "x" * 32, "good": "y" * 64, "bad": "z", "sys": "s" * 32}]))
    said = [{"who": "me", "what": "<image>What?"}]
    answers = {name: {"who": "you", "what": what} for name, what in (("good", "A cat."), ("bad", "Hm"))}
    (tmp_path / "turns.json").write_text(json.dumps([{"said": said, "pictures": ["a.png"], **answers}]))
    (tmp_path / "a.png").write_bytes(png(9, 5))
    media = MediaReading(prefers=True)
    [texts] = dataset(tmp_path, SEES, names=["texts"], media=media).samples
    assert texts.text_tokens == (32 + 64 + 32) * 10 // 32 + 3 * 5
    assert texts.shorter_tokens < texts.text_tokens
    [turns] = dataset(tmp_path, SEES, names=["turns"], media=media).samples
    assert turns.images == ((9, 5),)
    with pytest.raises(InputError, match="names no column of chosen answers for unnamed"):
        dataset(tmp_path, SEES, names=["unnamed"], media=media)
    with pytest.raises(InputError, match="has ranking"):
        dataset(tmp_path, SEES, names=["texts"])


# What is kept


@pytest.fixture
def num_scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of samples that were really looked at."""
    counts: list[int] = []
    original = scan._looked_at
    monkeypatch.setattr(scan, "_looked_at", lambda *given: (counts.append(1), original(*given))[1])
    return counts


def test_samples_are_looked_at_again_only_where_something_changed(num_scans: list[int], tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png(9, 5))
    path = jsonl(tmp_path, shown("a.png"), "{")
    first = dataset(path, SEES)
    assert dataset(path, SEES) == first
    assert len(num_scans) == 1
    (tmp_path / "a.png").write_bytes(png(30, 20))
    os.utime(tmp_path / "a.png", ns=(time.time_ns(), time.time_ns() + 10**9))
    assert dataset(path, SEES).samples[0].images == ((30, 20),)
    jsonl(tmp_path, shown("a.png"))
    assert dataset(path, SEES).num_bad == 0
    assert len(num_scans) == 3


@pytest.mark.parametrize("content", ["", "no base64", "AAAA", "e30=", "eJyrrgUAAXUA+Q=="])
def test_a_broken_cache_is_none(content: str, num_scans: list[int], own_cache: Path, tmp_path: Path):
    path = jsonl(tmp_path, asked("a"))
    first = dataset(path, MODEL)
    [kept] = (own_cache / "vlmplan" / "datasets").iterdir()
    kept.write_text(content)
    assert dataset(path, MODEL) == first
    assert len(num_scans) == 2


@pytest.mark.sweep
def test_several_processes_find_what_one_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = jsonl(tmp_path, *(asked("x" * (n % 97)) if n % 10 else "{" for n in range(1300)))
    one = dataset(path, MODEL)
    monkeypatch.setattr(scan, "_num_processes", lambda total: 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert dataset(path, MODEL) == one
    assert one.num_bad == 130
    assert path.stat().st_size < LEAST_BYTES
