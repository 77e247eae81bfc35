"""Chats with tools: every form becomes what transformers gives to chat templates."""

import json

import pytest

from vlmplan.chats.formats import RawSample, raw_sample
from vlmplan.chats.preferences import raw_preference, raw_prompt
from vlmplan.chats.tools import Said, refuse_unwritten
from vlmplan.errors import InputError

QUESTION, ANSWER = "How warm is it in Bern and Ulm?", "21 and 19 degrees."
PLACES = ("Bern", "Ulm")
FUNCTION = {"name": "warmth", "description": "Degrees.", "parameters": {"type": "object", "properties": {"at": {}}}}
TOOL = {"type": "function", "function": FUNCTION}


def call(at: str) -> dict:
    return {"name": "warmth", "arguments": {"at": at}}


def as_text(at: str) -> str:
    return json.dumps(call(at))


OPENAI = {
    "tools": [TOOL],
    "messages": [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "warmth", "arguments": json.dumps({"at": at})}}
                for at in PLACES
            ],
        },
        {"role": "tool", "content": "21"},
        {"role": "tool", "content": "19"},
        {"role": "assistant", "content": ANSWER},
    ],
}
MS_SWIFT = {
    "tools": json.dumps([TOOL]),
    "messages": [
        {"role": "user", "content": QUESTION},
        *({"role": "tool_call", "content": as_text(at)} for at in PLACES),
        {"role": "tool_response", "content": "21"},
        {"role": "tool_response", "content": "19"},
        {"role": "assistant", "content": ANSWER},
    ],
}
LLAMA_FACTORY = {
    "tools": json.dumps([FUNCTION]),
    "conversations": [
        {"from": "human", "value": QUESTION},
        {"from": "function_call", "value": json.dumps([call(at) for at in PLACES])},
        {"from": "observation", "value": "21"},
        {"from": "observation", "value": "19"},
        {"from": "gpt", "value": ANSWER},
    ],
}
FORMS = {"OpenAI": OPENAI, "ms-swift": MS_SWIFT, "LLaMA-Factory": LLAMA_FACTORY}


def read(values: dict) -> RawSample:
    return raw_sample(values, source="some.jsonl:7")


def messages(sample: RawSample) -> list[dict]:
    return [
        {"role": turn.role, "content": "".join(map(str, turn.content))} | (turn.more.values if turn.more else {})
        for turn in sample.turns
    ]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_what_templates_get_from_transformers(form):
    sample = read(FORMS[form])
    calls = [{"type": "function", "function": call(at)} for at in PLACES]
    assert [json.loads(tool) for tool in sample.tools] == [TOOL]
    assert messages(sample) == [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "21"},
        {"role": "tool", "content": "19"},
        {"role": "assistant", "content": ANSWER},
    ]


def test_what_is_said_before_calls_is_of_the_same_turn():
    said = [{"role": "assistant", "content": "Let me see."}, {"role": "tool_call", "content": as_text("Bern")}]
    sample = read({"messages": [{"role": "user", "content": QUESTION}, *said]})
    [_, turn] = messages(sample)
    assert turn["content"] == "Let me see."
    assert turn["tool_calls"][0]["function"] == call("Bern")


def test_names_and_numbers_of_calls_are_kept_for_templates_that_ask_for_them():
    of_call = {"id": "a1b2c3d4e", "function": call("Bern")}
    answer = {
        "role": "tool",
        "tool_call_id": "a1b2c3d4e",
        "name": "warmth",
        "content": [{"type": "text", "text": "21"}],
    }
    asked = {"role": "user", "content": QUESTION}
    sample = read({"messages": [asked, {"role": "assistant", "tool_calls": [of_call]}, answer]})
    _, calling, answering = messages(sample)
    assert calling["tool_calls"][0]["id"] == "a1b2c3d4e"
    assert answering == {"role": "tool", "content": "21", "name": "warmth", "tool_call_id": "a1b2c3d4e"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tools": 5}, "tools"),
        ({"tools": "[{"}, "tools"),
        ({"tools": [{"description": "no name"}]}, "a list of functions with a name each"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "tool_call", "content": "not JSON"}]}, "content"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "tool_call", "content": '{"a": 1}'}]}, "the name of"),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "tool_calls",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": []}]},
            "content is missing",
        ),
    ],
    ids=str,
)
def test_what_is_no_tool_and_no_call_is_refused_with_its_place(change: dict, words: str):
    with pytest.raises(InputError) as caught:
        read(OPENAI | change)
    assert words in str(caught.value)
    assert "some.jsonl:7" in str(caught.value)


def test_a_prompt_that_is_a_text_has_no_tools():
    with pytest.raises(InputError, match=r"tools .*a list of messages does"):
        read({"prompt": "a", "completion": "b", "tools": [TOOL]})


def test_an_answer_of_a_tool_shows_no_image():
    shown = {"role": "tool", "content": [{"type": "image", "path": "a.png"}]}
    with pytest.raises(InputError, match="a turn of the tool shows an image"):
        read({"messages": [*OPENAI["messages"][:2], shown]})


@pytest.mark.parametrize("form", FORMS)
def test_a_preference_has_its_tools_and_calls_in_both_answers(form: str):
    values = FORMS[form]
    key = "messages" if "messages" in values else "conversations"
    first, *others = values[key]
    worse = {"from": "gpt", "value": "No."} if key == "conversations" else {"role": "assistant", "content": "No."}
    chosen, rejected = raw_preference(
        {"tools": values["tools"], "chosen": [first, *others], "rejected": [first, worse]}, source="x"
    )
    assert messages(chosen) == messages(read(OPENAI))
    assert [json.loads(tool) for tool in chosen.tools] == [TOOL]
    assert (chosen.tools, chosen.num_prompt_turns) == (rejected.tools, 1)
    assert rejected.turns[1].content == ("No.",)


def test_a_preference_with_images_has_no_tools():
    asked = {"role": "user", "content": "<image>What is it?"}
    pair = {key: [asked, {"role": "assistant", "content": key}] for key in ("chosen", "rejected")}
    with pytest.raises(InputError, match="shows images and has tools; TRL's collator of images gives"):
        raw_preference({**pair, "images": ["a.png"], "tools": [TOOL]}, source="x")


def test_a_prompt_may_end_with_what_a_tool_answered():
    raw = raw_prompt({"prompt": OPENAI["messages"][:4]}, source="x")
    assert [turn.role for turn in raw.turns] == ["user", "assistant", "tool", "tool"]
    assert raw.turns[1].more is not None


def test_tools_beside_a_prompt_are_its_reward_functions():
    """``GRPOTrainer`` of TRL has tools of its own and reads no column of them."""
    assert raw_prompt({"prompt": OPENAI["messages"][:1], "tools": [TOOL]}, source="x").tools == ()


def written_without(part: str):
    """What a template that leaves out a part makes of a chat."""

    def render(said: Said) -> str:
        parts = [json.dumps(said.tools)] if part != "tools" else []
        for message in said.messages:
            if message["role"] != "tool" or part != "answers":
                parts.append(str(message["content"]))
            if part != "calls":
                parts.append(json.dumps(message.get("tool_calls", "")))
        return "\n".join(parts)

    return render


@pytest.mark.parametrize(
    ("part", "words"), [("tools", "a tool that may be"), ("calls", "a call of"), ("answers", "what a tool answers")]
)
def test_what_a_template_leaves_out_is_found(part: str, words: str):
    sample = read(OPENAI)
    said = Said(messages(sample), sample.tools)
    refuse_unwritten(said, written_without("nothing"))
    with pytest.raises(InputError, match=f"leaves out {words}"):
        refuse_unwritten(said, written_without(part))
