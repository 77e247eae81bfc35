"""Which turns of the assistant are learnt, and what it thinks, by every key that says so."""

from typing import Any

import pytest

from chat_files import ANSWER, asked
from vlmplan.chats.formats import raw_sample
from vlmplan.chats.pairs import pair_of
from vlmplan.chats.samples import Sample, TextPart, Turn
from vlmplan.errors import InputError

ASKED: dict[str, Any] = {"role": "user", "content": "x"}
OFF = [{"weight": 0}, {"loss": False}, {"loss_scale": 0.0}, {"loss_weight": 0.0}, {"train": False}, {"weight": False}]
ON = [{"weight": 1}, {"loss": True}, {"loss": None}, {"loss_weight": 1.0}, {"train": True}, {"reasoning_content": ""}]


def read(*messages: dict[str, Any], **more: Any) -> Any:
    return raw_sample({"messages": [*messages], **more}, source="some.jsonl:7")


@pytest.mark.parametrize("said", OFF, ids=str)
def test_a_turn_that_is_not_to_be_learnt_is_known(said: dict[str, Any]):
    roles = read(ASKED, ANSWER | said, ASKED, ANSWER)
    of_llava = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "A cat."}] * 2
    of_llava[1] = of_llava[1] | said
    texts = raw_sample({"conversations": of_llava}, source="x")
    assert [turn.is_learnt for turn in roles.turns] == [True, False, True, True]
    assert texts.turns == roles.turns


@pytest.mark.parametrize("said", [*ON, {"name": "n"}], ids=str)
def test_a_turn_that_is_learnt_as_all_are_is_read(said: dict[str, Any]):
    assert read(ASKED, ANSWER | said).turns == raw_sample(asked("x"), source="x").turns


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([ASKED, ANSWER | {"loss_scale": 0.5}], r"messages\[1\].loss_scale is 0\.5; what is learnt counts alike"),
        ([ASKED, ANSWER | {"weight": "0"}], r'weight is "0"; what is learnt counts alike'),
        ([ASKED | {"train": True}, ANSWER], r"messages\[0\].train is true; only what the assistant says"),
        ([ASKED | {"loss_weight": 1.0}, ANSWER], r"loss_weight is 1\.0; only what the assistant says"),
        ([ASKED, ANSWER | {"train_detail": [{"begin_offset": 0}]}], "train_detail .*as a whole or not at all"),
        (
            [ASKED, ANSWER | {"content": [{"type": "text", "text": "a", "train": False}]}],
            r"messages\[1\].content\[0\].train is false; a turn is learnt as a whole",
        ),
        ([ASKED, ANSWER | {"loss": False}], "no turn of the assistant is to be learnt"),
        ([ASKED, ANSWER | {"reasoning_content": "a", "thinking": "b"}], "thinking .*reasoning_content says something"),
        ([ASKED, ANSWER | {"thinking": ["a"]}], "thinking.*text is needed"),
        ([ASKED, ANSWER | {"content": "", "reasoning_content": "a"}], "turn 2, the assistant's, is empty"),
        (
            [ASKED, ANSWER, {"role": "tool_call", "content": '{"name": "f"}', "loss": False}],
            r"messages\[2\] calls a tool in the turn before it, and one of the two",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_learnt_so_is_refused_with_its_place(messages: list[dict[str, Any]], words: str):
    with pytest.raises(InputError, match=words) as caught:
        read(*messages)
    assert "some.jsonl:7" in str(caught.value)


def test_of_calls_one_behind_the_other_the_first_says_it():
    calls = [{"role": "tool_call", "content": '{"name": "f"}'} | more for more in ({"loss": False}, {})]
    turns = read(ASKED, *calls, {"role": "tool_response", "content": "1"}, ANSWER).turns
    assert [turn.is_learnt for turn in turns] == [True, False, True, True]
    assert turns[1].more is not None
    assert len(turns[1].more.calls) == 2


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_are_given_to_templates_by_the_names_that_transformers_gives_them(key: str):
    pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    from transformers.utils.chat_template_utils import render_jinja_template

    call = {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    turn = read(ASKED, ANSWER | call | {key: "Hm."}).turns[1]
    assert turn.more is not None
    assert (turn.more.thoughts, len(turn.more.calls)) == ("Hm.", 1)
    written = "{{ messages[0].thinking }} {{ messages[0].reasoning_content }}"
    message = Turn(role="assistant", content=(TextPart(text="A cat."),), more=turn.more).message("A cat.")
    [[ours], _], [[theirs], _] = (
        render_jinja_template([[one]], chat_template=written) for one in (message, ANSWER | {key: "Hm."})
    )
    assert ours == theirs == "Hm. Hm."
    assert (message["thinking"], message["reasoning_content"]) == ("Hm.", "Hm.")


def test_of_a_completion_all_is_learnt():
    completion = [ANSWER, ASKED, ANSWER | {"loss": False}]
    with pytest.raises(InputError, match="turn 3 of the completion is not to be learnt, but all of a completion is"):
        raw_sample({"prompt": [ASKED], "completion": completion}, source="x")
    prompt = [ASKED, ANSWER | {"loss": False}, ASKED]
    assert raw_sample({"prompt": prompt, "completion": [ANSWER]}, source="x").num_prompt_turns == 3


def test_a_model_with_an_encoder_and_a_decoder_learns_the_last_turn_and_reads_no_thoughts():
    def of(*turns: Turn) -> Sample:
        return Sample(source="x", turns=turns)

    user, said = Turn(role="user", content=(TextPart(text="x"),)), (TextPart(text="y"),)
    learnt, unlearnt = (Turn(role="assistant", content=said, is_learnt=is_learnt) for is_learnt in (True, False))
    assert pair_of(of(user, unlearnt, user, learnt)).answer == "y"
    with pytest.raises(InputError, match="the last turn is not to be learnt"):
        pair_of(of(user, learnt, user, unlearnt))
    [_, thinking] = read(ASKED, ANSWER | {"thinking": "Hm."}).turns
    with pytest.raises(InputError, match="has thoughts"):
        pair_of(of(user, Turn(role="assistant", content=said, more=thinking.more)))
