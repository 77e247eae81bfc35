"""Pairs of answers with ``--task dpo --data``: each is as long as TRL pads it, the longer of both."""

import json
from pathlib import Path

import pytest

from chat_files import jsonl, png_header
from cli_calls import call
from vlmplan.dataset.counting import BYTES_PER_TOKEN, TOKENS_PER_TURN
from vlmplan.errors import InputError
from vlmplan.request import parse

SHORT, LONG = "No.", "Rome is the capital of Italy, which everybody knows who has been there once."


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def pair(chosen: str, rejected: str, prompt: str = "Where is Rome?") -> dict[str, object]:
    answers = {"chosen": [said("assistant", chosen)], "rejected": [said("assistant", rejected)]}
    return {"prompt": [said("user", prompt)], **answers}


def asked(model: str = "qwen2.5-0.5b", task: str = "dpo", **options):
    return parse({"model": model, "task": task, "data": "chats.jsonl", **options})


def tokens_of(*turns: str) -> int:
    return round(sum(map(len, turns)) / BYTES_PER_TOKEN) + TOKENS_PER_TURN * len(turns)


def test_a_pair_is_as_long_as_its_longer_answer_whichever_that_is():
    without_prompt = {
        "chosen": [said("user", "Hi"), said("assistant", LONG)],
        "rejected": [said("user", "Hi"), said("assistant", SHORT)],
    }
    jsonl(Path(), pair(LONG, SHORT), pair(SHORT, LONG), without_prompt)
    request = asked()
    shapes = request.from_data.source.found.shapes
    longest = tokens_of("Where is Rome?", LONG)
    assert [shape.tokens for shape in shapes] == [longest, longest, tokens_of("Hi", LONG)]
    assert [shape.shorter_tokens for shape in shapes[:2]] == [tokens_of("Where is Rome?", SHORT)] * 2
    assert request.workload.seq_len == longest
    assert request.workload.num_samples == 3
    assert asked().from_data.source.found.shapes == shapes  # as it was kept


def test_marked_answers_and_those_of_a_pair_are_samples_of_their_own():
    jsonl(Path(), pair(LONG, SHORT))
    request = asked(task="kto")
    assert [shape.tokens for shape in request.from_data.source.found.shapes] == [
        tokens_of("Where is Rome?", answer) for answer in (LONG, SHORT)
    ]
    marked = {"prompt": [said("user", "Hi")], "completion": [said("assistant", LONG)], "label": True}
    jsonl(Path(), marked, marked, marked)
    request = asked(task="kto")
    assert (request.workload.num_samples, request.workload.seq_len) == (3, tokens_of("Hi", LONG))


def test_the_shorter_answer_is_padding():
    jsonl(Path(), *[pair(LONG, SHORT)] * 4)
    words = ("--model", "qwen2.5-0.5b", "--gpu", "rtx-4090", "--task", "dpo", "--method", "lora")
    data = call("estimate", *words, "--data", "chats.jsonl", "--json").document["data"]
    longest, shortest = (tokens_of("Where is Rome?", answer) for answer in (LONG, SHORT))
    mean = (longest + shortest) // 2
    assert data["padding_fraction"] == pytest.approx(1 - mean / longest)
    assert data["options"] == []  # neither packed nor sorted


def test_images_of_a_prompt_are_planned_once():
    Path("a.png").write_bytes(png_header(280, 280))
    content = [{"type": "image"}, {"type": "text", "text": "What?"}]
    row = pair(LONG, SHORT) | {"prompt": [{"role": "user", "content": content}], "images": ["a.png"]}
    jsonl(Path(), row)
    [shape] = asked("qwen2-vl-2b").from_data.source.found.shapes
    assert (shape.num_images, shape.image_tokens, shape.patches) == (1, 10 * 10, 20 * 20)
    assert shape.tokens - shape.shorter_tokens == tokens_of("What?", LONG) - tokens_of("What?", SHORT)


def test_samples_without_a_pair_are_bad_and_prompts_of_grpo_have_no_length():
    jsonl(Path(), pair(LONG, SHORT), pair(LONG, LONG), {"messages": [said("user", "a"), said("assistant", "b")]})
    source = asked().from_data.source
    assert (len(source.found.shapes), source.dataset.num_bad) == (1, 2)
    assert "chosen and rejected are the same" in source.dataset.sentences[0]
    assert "chosen and rejected are missing; --task dpo trains on prompt, chosen" in source.dataset.sentences[1]
    with pytest.raises(InputError, match="does not say how long the answers are that --task grpo trains on"):
        asked(task="grpo")


@pytest.mark.sweep
def test_every_command_plans_the_same_pairs(tmp_path: Path):
    jsonl(Path(), *[pair(LONG * count, SHORT) for count in range(1, 6)])
    words = ("--model", "qwen2.5-0.5b", "--gpu", "rtx-4090", "--task", "dpo", "--data", "chats.jsonl")
    found = call("recommend", *words, "--global-batch", "1", "--json").document
    estimate = call("estimate", *words, "--method", "lora", "--json").document
    assert found["data"]["tokens"] == estimate["data"]["tokens"]
    request = asked(method="lora")
    assert parse(request.options()).workload.seq_len == request.workload.seq_len
    assert json.loads(json.dumps(found["data"]["forms"])) == {"prompt, chosen, rejected (messages)": 5}
