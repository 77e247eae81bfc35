"""Preferences and prompts: TRL's forms are read as they are, and what is not in order is one sentence."""

import re
from pathlib import Path

import pytest

from chat_files import ANSWER, as_base64, jsonl, png
from vlmplan.chats.formats import RawTurn
from vlmplan.chats.preferences import raw_preference, raw_prompt, read_preferences, read_prompts
from vlmplan.chats.references import Reference
from vlmplan.errors import InputError
from vlmplan_trainer.data.images import opened

ASKED = [{"role": "user", "content": "What is it?"}]
OTHER = {"role": "assistant", "content": "A dog."}
PAIR = {"prompt": ASKED, "chosen": [ANSWER], "rejected": [OTHER]}
AT_FIRST = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
OTHER_FORMS = {
    "ms-swift, rejected_response": {"messages": [*AT_FIRST, *ASKED, ANSWER], "rejected_response": "A dog."},
    "ms-swift, a list": {"messages": [*AT_FIRST, *ASKED, ANSWER], "rejected_response": [OTHER]},
    "ms-swift, rejected_messages": {
        "messages": [*AT_FIRST, *ASKED, ANSWER],
        "rejected_messages": [*AT_FIRST, *ASKED, OTHER],
    },
    "ms-swift, query": {
        "query": "What is it?",
        "response": "A cat.",
        "history": [["Hi.", "Hello."]],
        "rejected_response": "A dog.",
    },
    "LLaMA-Factory": {
        "conversations": [
            {"from": "human", "value": "Hi."},
            {"from": "gpt", "value": "Hello."},
            {"from": "human", "value": "What is it?"},
        ],
        "chosen": {"from": "gpt", "value": "A cat."},
        "rejected": {"from": "gpt", "value": "A dog."},
    },
    "LLaMA-Factory, Alpaca": {
        "instruction": "What is it?",
        "input": "",
        "history": [["Hi.", "Hello."]],
        "chosen": "A cat.",
        "rejected": "A dog.",
    },
    "axolotl": {"messages": [*AT_FIRST, *ASKED], "chosen": ANSWER, "rejected": OTHER},
    "OpenAI": {
        "input": {"messages": [*AT_FIRST, *ASKED], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [ANSWER],
        "non_preferred_output": [OTHER],
    },
    "TRL, whole chats": {"chosen": [*AT_FIRST, *ASKED, ANSWER], "rejected": [*AT_FIRST, *ASKED, OTHER]},
    "TRL, a prompt said twice": {
        "prompt": "Hi.",
        "chosen": [*AT_FIRST, *ASKED, ANSWER],
        "rejected": [*AT_FIRST, *ASKED, OTHER],
        "score_chosen": 9.0,
    },
}
QUESTION = RawTurn(role="user", content=("What is it?",))


def answers(values: dict) -> list[tuple[RawTurn, ...]]:
    return [raw.turns for raw in raw_preference(values, source="some.jsonl:7")]


def assistant(said: str) -> RawTurn:
    return RawTurn(role="assistant", content=(said,))


def test_two_answers_share_the_turns_of_their_prompt():
    assert answers(PAIR) == [(QUESTION, assistant("A cat.")), (QUESTION, assistant("A dog."))]
    chosen, rejected = raw_preference(PAIR, source="x")
    assert chosen.num_prompt_turns == rejected.num_prompt_turns == 1
    assert chosen.form == "prompt, chosen, rejected (messages)"


def test_whole_chats_have_the_prompt_that_both_begin_with():
    whole = {"chosen": [*ASKED, ANSWER], "rejected": [*ASKED, OTHER]}
    assert answers(whole) == answers(PAIR)


@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}], ids=["", "system"])
def test_other_trainers_preferences_are_those_of_trl(form: str, more: dict):
    values = OTHER_FORMS[form] | more
    expected = {"prompt": [*AT_FIRST, *ASKED], "chosen": [ANSWER], "rejected": [OTHER]}
    system = [{"role": "system", "content": "Be brief."}] if more else []
    assert answers(values) == answers(expected | {"prompt": [*system, *expected["prompt"]]})
    assert answers(values | {"rejected": values.get("rejected"), "label": None}) == answers(values)


def test_texts_have_the_prompt_that_both_begin_with_up_to_a_blank():
    """As ``extract_prompt`` of TRL has it."""
    both = {"chosen": "The sky is blue.", "rejected": "The sky is green."}
    assert [[turn.content for turn in turns] for turns in answers(both)] == [
        [("The sky is",), (" blue.",)],
        [("The sky is",), (" green.",)],
    ]
    shorter = {"chosen": "One, two", "rejected": "One"}
    assert [turns[0].content for turns in answers(shorter)] == [("On",)] * 2


def test_texts_are_read_without_a_template():
    chosen, rejected = raw_preference({"prompt": "1 + 1 =", "chosen": " 2", "rejected": " 3"}, source="x")
    assert chosen.is_plain
    assert rejected.is_plain
    assert [raw.turns[1].content for raw in (chosen, rejected)] == [(" 2",), (" 3",)]


def test_both_answers_are_to_the_same_images():
    for turns in answers(PAIR | {"prompt": [{"role": "user", "content": "<image>\nHm?"}], "images": ["a.png"]}):
        assert turns[0].content == (Reference(text="a.png"), "Hm?")


def test_a_prompt_keeps_what_stands_beside_it_for_the_rewards(tmp_path: Path):
    (tmp_path / "a.png").write_bytes(png())
    file = jsonl(tmp_path, {"prompt": ASKED, "images": ["a.png"], "solution": 4, "level": "hard"})
    [prompt], report = read_prompts(file, skips_bad=False)
    assert prompt.others == {"solution": 4, "level": "hard"}
    assert [turn.role for turn in prompt.sample.turns] == ["user"]
    assert (len(prompt.sample.images), report.forms) == (1, {"prompt (messages)": 1})


@pytest.mark.parametrize("read", [read_preferences, read_prompts])
def test_an_image_in_the_file_itself_is_found_again(tmp_path: Path, read):
    embedded = {"prompt": ASKED, "images": ["data:image/png;base64," + as_base64(png(13, 7))]}
    file = jsonl(tmp_path, {"prompt": "x", "chosen": "y", "rejected": "z"}, PAIR | embedded)
    [_, second], _ = read(file, skips_bad=False)
    [image] = getattr(second, "chosen", getattr(second, "sample", None)).images
    assert opened(image.source, name="it").size == (13, 7)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"prompt": ASKED, "chosen": [ANSWER]},
            "rejected is missing; --task dpo trains on prompt, chosen and rejected",
        ),
        ({"messages": [*ASKED, ANSWER]}, "chosen and rejected are missing"),
        (PAIR | {"rejected": [ANSWER]}, "chosen and rejected are the same"),
        (PAIR | {"rejected": "A dog."}, 'rejected is "A dog."; a text, or a list of messages, and the same for prompt'),
        (PAIR | {"rejected": ASKED}, "a rejected that begins with one of the assistant's"),
        ({"chosen": "a", "rejected": "b"}, "texts that begin with nothing alike; a prompt is needed"),
        ({"chosen": "a", "rejected": [OTHER]}, "prompt is missing, and chosen and rejected are neither both texts nor"),
        ({"prompt": "x", "chosen": "a", "rejected": "b", "system": "s"}, 'system is "s"; a prompt that is a text has'),
        (
            {"messages": [*ASKED, ANSWER], "rejected_images": ["a.png"]},
            "rejected_images .*both answers are to the same",
        ),
        (PAIR | {"rejected": [OTHER | {"weight": 0}]}, "turn 1 of the completion is not to be learnt"),
        (PAIR | {"images": ["a.png", "b.png"], "prompt": [{"role": "user", "content": "<image>"}]}, "more images than"),
    ],
)
def test_what_is_no_preference_is_one_sentence(values: dict, sentence: str):
    with pytest.raises(InputError, match=r"some\.jsonl:7: ") as found:
        raw_preference(values, source="some.jsonl:7")
    assert re.search(sentence, str(found.value))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"question": "x"}, "prompt is missing; --task grpo trains on prompts"),
        ({"prompt": []}, "a prompt of a message or more"),
        ({"prompt": [*ASKED, ANSWER]}, "a prompt ends with a turn of the user"),
        (
            {"prompt": [{"role": "user", "content": "  "}]},
            "a prompt ends with a turn of the user, or of a tool, that is not empty",
        ),
        ({"prompt": 7}, "prompt is 7; a text, or a list of messages"),
    ],
)
def test_what_is_no_prompt_is_one_sentence(values: dict, sentence: str):
    with pytest.raises(InputError, match=r"some\.jsonl:7: ") as found:
        raw_prompt(values, source="some.jsonl:7")
    assert sentence in str(found.value)


@pytest.mark.parametrize("key", ["video", "videos", "audio", "audios"])
def test_videos_and_sounds_are_refused_by_name_and_never_left_out_in_silence(key: str):
    """TRL's trainers and collators read the column of images alone."""
    kind, shown = ("video", "video") if key.startswith("video") else ("sound", "audio")
    asked = [{"role": "user", "content": f"<{shown}>Hm?"}]
    part = [{"role": "user", "content": [{"type": shown, shown: "a.mp4"}]}]
    for read, values in ((raw_preference, PAIR), (raw_prompt, {"prompt": ASKED})):
        with pytest.raises(
            InputError, match=f"^x: {key} .*TRL's trainers of DPO and GRPO show a model images and no {kind}s"
        ):
            read(values | {"prompt": asked, key: ["a.mp4"]}, source="x")
        with pytest.raises(InputError, match=f"a turn shows a {kind}; TRL's trainers"):
            read(values | {"prompt": part}, source="x")
        assert read(values | {key: []}, source="x")
