"""Lists of messages in JSON as turns: with role and content (OpenAI, TRL, ms-swift), or with from and value (LLaVA,
ShareGPT)."""

from collections.abc import Sequence

from vlmplan.chats.tools import ANSWER_ROLES, CALL_ROLES, OfMessage, answering, called, called_in_text, joined
from vlmplan.chats.turn_keys import is_learnt, refuse_learnt, thoughts_of
from vlmplan.chats.turn_parts import UNLEARNT, Part, Parts, part_of, tagged
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject

ROLES = {role: role for role in ("system", "user", "assistant", "tool")}
OTHER_ROLES = {"developer": "system", "model": "assistant"}
"""OpenAI's newer name for the system, and Gemma's for the assistant."""
LLAVA_ROLES = {
    "human": "user",
    "user": "user",
    "system": "system",
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model", "bing", "bard"), "assistant"),
}
OF_TOOLS = {**dict.fromkeys(CALL_ROLES, "assistant"), **dict.fromkeys(ANSWER_ROLES, "tool")}


def messages_of(sample: JsonObject, key: str) -> Parts:
    """The turns of a list of messages with role and content."""
    turns: Parts = []
    for message in sample.objects(key):
        said = message.choice("role", {**ROLES, **OF_TOOLS, **OTHER_ROLES})
        if said in CALL_ROLES:
            _add_calls(turns, message, "content")
            continue
        role = {**OF_TOOLS, **OTHER_ROLES}.get(said, said)
        more = _beside(message, role)
        calls = any(isinstance(part, OfMessage) and part.calls for part in more)
        turns.append((role, [*_contents(message, role, may_be_empty=calls), *more]))
    return turns


def _beside(message: JsonObject, role: str) -> list[Part]:
    """What a message says beside role and content."""
    if role != "assistant":
        refuse_learnt(message)
        return [*answering(message)] if role == "tool" else []
    more = joined([*thoughts_of(message), *called(message)])
    return [*more, *([] if is_learnt(message) else [UNLEARNT])]


def said_in_texts(messages: Sequence[JsonObject]) -> Parts:
    """The turns of messages with from and value."""
    turns: Parts = []
    for message in messages:
        said = message.choice("from", {**LLAVA_ROLES, **OF_TOOLS})
        if said in CALL_ROLES:
            _add_calls(turns, message, "value")
            continue
        role = OF_TOOLS.get(said) or LLAVA_ROLES[said]
        turns.append((role, [*tagged(message.text("value"), role), *_beside(message, role)]))
    return turns


def _contents(message: JsonObject, role: str, *, may_be_empty: bool) -> list[Part]:
    content = message.maybe("content", message.raw) if may_be_empty else message.raw("content")
    if content is None and may_be_empty:
        return []
    if isinstance(content, str):
        return tagged(content, role)
    if not isinstance(content, list):
        message.refuse("content", "text, or a list of parts")
    return [part_of(part) for part in message.objects("content")]


def _add_calls(turns: Parts, message: JsonObject, key: str) -> None:
    """Add the calls of a message to the assistant's turn that is the last, else as a turn of their own. Of calls one
    behind the other the first says whether they are learnt, as in ms-swift."""
    calls, unlearnt = called_in_text(message, key), [] if is_learnt(message) else [UNLEARNT]
    if not turns or turns[-1][0] != "assistant":
        turns.append(("assistant", [calls, *unlearnt]))
        return
    role, parts = turns[-1]
    before = [part for part in parts if isinstance(part, OfMessage)]
    others: list[Part] = [part for part in parts if not isinstance(part, OfMessage)]
    if not any(part.calls for part in before) and (UNLEARNT in parts) != bool(unlearnt):
        raise InputError(
            f"{message.source}: {message.path} calls a tool in the turn before it, and one of the two is not to be "
            f"learnt; a turn is learnt as a whole or not at all"
        )
    turns[-1] = (role, [*others, *joined([*before, calls])])
