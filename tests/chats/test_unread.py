"""What stands beside the turns of a sample is read, or refused by name; nothing is left out without a word."""

from typing import Any

import pytest

from chat_files import asked
from vlmplan.chats.formats import RawTurn, raw_sample
from vlmplan.chats.references import Reference
from vlmplan.errors import InputError

SHAREGPT = {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}
IN_ROLES = {"conversations": asked("x")["messages"]}


def read(values: dict[str, Any]) -> Any:
    return raw_sample(values, source="some.jsonl:7")


@pytest.mark.parametrize("values", [asked("x"), SHAREGPT, IN_ROLES], ids=["messages", "LLaVA", "roles"])
def test_a_system_beside_the_turns_comes_before_them(values: dict[str, Any]):
    first, *others = read({"system": "Be brief.", **values}).turns
    assert first == RawTurn(role="system", content=("Be brief.",))
    assert (
        tuple(others)
        == read(values).turns
        == read({"system": None, **values}).turns
        == read({"system": "", **values}).turns
    )


def test_two_systems_are_one_too_many():
    with pytest.raises(InputError, match=r"system .*the first turn is the system's too"):
        read({"system": "a", "messages": [{"role": "system", "content": "b"}, *asked("x")["messages"]]})


def test_a_worse_answer_beside_the_chat_is_sent_to_its_task():
    with pytest.raises(InputError, match=r"rejected_response.*--task dpo"):
        read(asked("x", rejected_response="no"))
    assert read(asked("x", rejected_response=None)).turns == read(asked("x")).turns


@pytest.mark.parametrize("more", [{"label": True}, {"kto_tag": False}, {"rejected_messages": asked("x")["messages"]}])
def test_what_is_marked_as_good_or_bad_is_for_another_task(more: dict[str, Any]):
    with pytest.raises(InputError, match=r"marked as good or bad|--task dpo"):
        read(asked("x", **more))
    assert read(asked("x", label=1)).turns == read(asked("x")).turns


def test_objects_are_refused_where_the_text_has_places_for_them():
    objects = {"ref": ["cat"], "bbox": [[1, 2, 3, 4]]}
    with pytest.raises(InputError, match=r"objects.*<ref-object> and <bbox>"):
        read(asked("Where is <ref-object>?", objects=objects))
    found = read(asked("<image>Where?", images=["a.png"], objects=objects))
    assert found.turns[0].content == (Reference(text="a.png"), "Where?")
