"""Samples of models with an encoder and a decoder: prompts and answers are measured apart, as the trainer has them."""

import json
from pathlib import Path

import pytest

from chat_files import jsonl
from cli_calls import call
from small_sounds import write_wav
from vlmplan.data_plan import DataSource
from vlmplan.dataset.counting import BYTES_PER_TOKEN, TOKENS_PER_TEXT
from vlmplan.dataset.pairs import SPEECH_TOKENS
from vlmplan.request import Request, parse

BART = {"model_type": "bart", "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 512}
BART |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
BART |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 512}
WHISPER = {**BART, "model_type": "whisper", "max_target_positions": 64}
PAIRS = [("a" * 160, "b" * 32), ("c" * 320, "d" * 16), ("e" * 32, "f" * 320)]
"""Prompts and answers, of which none has both the longest."""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: None) -> None:
    monkeypatch.chdir(tmp_path)
    for name, config in {"bart": BART, "whisper": WHISPER}.items():
        Path(name).mkdir()
        (Path(name) / "config.json").write_text(json.dumps(config))


def requested(model: str, **options) -> Request:
    return parse({"model": model, "data": "chats.jsonl", **options})


def source(model: str, **options) -> DataSource:
    found = requested(model, **options).from_data
    assert found is not None
    return found.source


def pairs() -> None:
    jsonl(Path(), *({"prompt": prompt, "completion": answer} for prompt, answer in PAIRS))


def tokens(text: str) -> int:
    return round(len(text) / BYTES_PER_TOKEN) + TOKENS_PER_TEXT


def sounds(*seconds: float, said: str = "good morning") -> None:
    for index, one in enumerate(seconds):
        write_wav(Path(f"{index}.wav"), one)
    jsonl(Path(), *({"audio": f"{index}.wav", "text": said} for index in range(len(seconds))))


def test_prompts_and_answers_are_counted_apart_and_the_plan_has_room_for_the_longest_of_each():
    pairs()
    shapes = source("bart").found.shapes
    assert [(one.tokens, one.answer_tokens) for one in shapes] == [(tokens(a), tokens(b)) for a, b in PAIRS]
    workload = requested("bart").workload
    assert workload.seq_len == tokens(PAIRS[1][0])
    assert workload.target_len == -(-tokens(PAIRS[2][1]) // 8) * 8


def test_a_length_that_is_said_limits_either():
    pairs()
    asked = {"seq_len": 64, "target_len": 40}
    found = source("bart", **asked)
    assert found.trained.num_cut == 2
    assert {one.answer_tokens for one in found.trained.samples.shapes} == {12, 7, 40}
    assert found.covering.target_len == 40
    assert found.covering.seq_len == 64
    workload = requested("bart", **asked).workload
    assert (workload.seq_len, workload.target_len) == (64, 40)


def test_without_one_the_models_positions_do():
    jsonl(Path(), {"prompt": "a" * 6000, "completion": "b" * 6000})
    workload = requested("bart").workload
    assert (workload.seq_len, workload.target_len) == (512, 512)


def test_a_chat_is_its_last_answer_and_all_before_it():
    turns = [("user", "red?"), ("assistant", "yes"), ("user", "blue?"), ("assistant", "no")]
    jsonl(Path(), {"messages": [{"role": role, "content": said} for role, said in turns]})
    [shape] = source("bart").found.shapes
    assert (shape.tokens, shape.answer_tokens) == (tokens("red?\nyes\nblue?"), tokens("no"))


def test_a_chat_that_ends_without_an_answer_is_a_bad_sample():
    turns = [("user", "red?"), ("assistant", "yes"), ("user", "blue?")]
    pair = {"prompt": "a", "completion": "b"}
    jsonl(Path(), pair, {"messages": [{"role": role, "content": said} for role, said in turns]})
    assert source("bart").dataset.num_bad == 1


def test_what_is_said_in_sounds_is_counted_and_sounds_are_as_long_as_the_longest():
    sounds(3, 7.5)
    found = source("whisper")
    assert {one.tokens for one in found.found.shapes} == {1500}
    assert {one.answer_tokens for one in found.found.shapes} == {round(12 / BYTES_PER_TOKEN) + SPEECH_TOKENS}
    assert {one.length for one in found.found.shapes} == {8}
    workload = requested("whisper").workload
    assert (workload.seq_len, workload.target_len) == (1500, 8)
    assert (workload.audios_per_sample, workload.audio_seconds) == (1, 7.5)


def test_what_a_model_cannot_hear_or_write_is_left_out():
    sounds(3, 31)
    assert source("whisper").found.num_refused == 1
    sounds(3, 7.5)
    assert source("whisper", audio_seconds=5).trained.num_many_sounds == 1
    rows = [{"audio": "0.wav", "text": said} for said in ("a", "b" * 6000)]
    jsonl(Path(), *rows)
    found = source("whisper")
    assert found.trained.num_many_sounds == 1
    assert any("more said in them, than --target-len says" in note for note in found.notes)


@pytest.mark.sweep
@pytest.mark.parametrize("model", ["bart", "whisper"])
def test_a_run_is_estimated_of_its_micro_batches(model: str):
    if model == "bart":
        pairs()
    else:
        sounds(3, 7.5, 4)
    words = ("--model", model, "--gpu", "rtx-4090", "--method", "full", "--data", "chats.jsonl", "--json")
    found = call("estimate", *words).document["data"]
    assert found["any_order"]["target_len"] >= found["worst_micro_batch"]["target_len"] > 0
    assert found["run_seconds"] > 0
    assert ("answer_tokens" in found) is (model == "bart")
    assert call("estimate", *words[:-1]).out.count(", answers of ") >= 2
