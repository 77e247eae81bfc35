"""Tools in chats: what may be called, what the assistant calls, and what that answers.

    {"tools": [...] or its JSON, "messages": [..., {"role": "assistant", "tool_calls": [{"function": {...}}]},
                                                   {"role": "tool", "content": "..."}, ...]}
    {"tools": ..., "messages": [..., {"role": "tool_call", "content": "{...}"}, {"role": "tool_response", ...}, ...]}
    {"tools": ..., "conversations": [..., {"from": "function_call", "value": "{...}"}, {"from": "observation", ...}]}

Those of OpenAI (and ``functions``, ``function_call`` and the role function, as it called them before), ms-swift
(``_preprocess_tool_call`` in ``swift/template/base.py``: calls one behind the other are one turn) and LLaMA-Factory
(``SharegptDatasetConverter`` in ``data/converter.py``). All become what chat templates get from transformers: arguments
that are an object, and a function's description under ``function``.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonDict, JsonObject, parse_json

CALL_ROLES, ANSWER_ROLES = (
    ("tool_call", "function_call"),
    ("tool", "tool_response", "observation", "function"),
)
"""What ms-swift and LLaMA-Factory call a turn that calls a tool, and one of what it answers."""
OF_ANSWERS = ("name", "tool_call_id")
"""Keys of a tool's message that templates are given."""
CALLS = "tool_calls"
THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")
THOUGHT, THOUGHT_TOO = THOUGHT_KEYS[:2]
"""Under which templates are given thoughts, as transformers does it (``_alias_reasoning_fields``)."""
NEITHER = "chats with tools are read for supervised fine-tuning of models with a chat template alone"


@dataclass(frozen=True, slots=True)
class OfMessage:
    """What a message says beside its role and its content, as JSON."""

    text: str

    @classmethod
    def of(cls, values: JsonDict) -> "OfMessage":
        return cls(_json(values))

    @property
    def values(self) -> JsonDict:
        return json.loads(self.text)

    @property
    def calls(self) -> list[JsonDict]:
        return self.values.get(CALLS, [])

    @property
    def thoughts(self) -> str:
        return self.values.get(THOUGHT, "")

    @property
    def for_template(self) -> JsonDict:
        """The keys of a message that a chat template gets."""
        values = self.values
        return values | ({THOUGHT_TOO: values[THOUGHT]} if THOUGHT in values else {})


def tools_of(sample: JsonObject) -> tuple[str, ...]:
    """The tools of a sample, each as JSON. Raises InputError for what is no list of them."""
    key = "functions" if "tools" not in sample else "tools"
    said = sample.maybe(key, sample.raw)
    if isinstance(said, str) and said.strip():
        said = parse_json(said, source=f"{sample.source}: tools")
    if said in (None, "", []) or (isinstance(said, str) and not said.strip()):
        return ()
    return tuple(_json(_tool(one, sample)) for one in _objects(said, sample, "tools"))


def _tool(values: JsonDict, sample: JsonObject) -> JsonDict:
    function = values.get("function", values)
    if not isinstance(function, dict) or not isinstance(cast(JsonDict, function).get("name"), str):
        sample.refuse("tools", "a list of functions with a name each")
    return values if "function" in values else {"type": "function", "function": values}


def called(message: JsonObject) -> list[OfMessage]:
    """The ``tool_calls`` of an assistant's message, as one part; none where it calls nothing."""
    said = message.maybe(CALLS, message.raw)
    if said in (None, []):
        said = message.maybe("function_call", message.raw)
    if said is None:
        return []
    return [_calls([_call(one, message, CALLS) for one in _objects(said, message, CALLS)])]


def called_in_text(message: JsonObject, key: str) -> OfMessage:
    """The calls that the text of a message is the JSON of: one, or a list of them."""
    text = message.text(key)
    said = parse_json(text, source=f"{message.source}: {message.key_path(key)}")
    return _calls([_call(one, message, key) for one in _objects(said, message, key)])


def joined(parts: Sequence[OfMessage]) -> list[OfMessage]:
    """All that is said, as one part, calls one behind the other; none of nothing."""
    calls = [call for part in parts for call in part.calls]
    values = {key: value for part in parts for key, value in part.values.items()} | ({CALLS: calls} if calls else {})
    return [OfMessage.of(values)] if values else []


def answering(message: JsonObject) -> list[OfMessage]:
    """What a tool's message says of itself, as one part."""
    said = {key: text for key in OF_ANSWERS if (text := message.maybe(key, message.text)) is not None}
    return [OfMessage.of(said)] if said else []


def _calls(calls: list[JsonDict]) -> OfMessage:
    return OfMessage.of({CALLS: calls})


def _call(values: JsonDict, message: JsonObject, key: str) -> JsonDict:
    function = values.get("function", values)
    name = cast(JsonDict, function).get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        message.refuse(key, "calls with the name of a function each")
    arguments = cast(JsonDict, function).get("arguments", {})
    if isinstance(arguments, str):
        arguments = parse_json(arguments or "{}", source=f"{message.source}: arguments of {name}")
    if not isinstance(arguments, dict):
        message.refuse(key, f"an object for the arguments of {name}")
    made: JsonDict = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made | ({"id": values["id"]} if isinstance(values.get("id"), str) else {})


def _objects(said: object, place: JsonObject, key: str) -> list[JsonDict]:
    listed = cast("list[object]", said) if isinstance(said, list) else [said]
    if not all(isinstance(one, dict) for one in listed):
        place.refuse(key, "an object, or a list of objects")
    return cast("list[JsonDict]", listed)


def _json(values: object) -> str:
    return json.dumps(values, ensure_ascii=False)


# -- what a chat template gets, and whether it writes it ---------------------------------------------------------------


class Said:
    """A chat as a template gets it: messages with what they say beside their content, and tools."""

    def __init__(self, messages: Sequence[JsonDict], tools: Sequence[str]) -> None:
        self.messages, self.tools = list(messages), [json.loads(tool) for tool in tools]

    @property
    def has_tools(self) -> bool:
        return bool(self.tools) or any(message["role"] == "tool" or CALLS in message for message in self.messages)


def refuse_unwritten(said: Said, render: Callable[[Said], str]) -> None:
    """Raise InputError where a template leaves out a tool, a call or an answer: with another name or content in place
    of each, its text is looked for."""
    if not said.has_tools:
        return
    marks: dict[str, str] = {}

    def mark(what: str) -> str:
        name = f"stands{len(marks)}in{len(marks)}place"
        marks[name] = what
        return name

    tools = [_named(tool, mark("a tool that may be called")) for tool in said.tools]
    messages = [_marked(message, mark) for message in said.messages]
    changed = Said(messages, ())
    changed.tools = tools
    text = render(changed)
    missing = next((what for name, what in marks.items() if name not in text), None)
    if missing is not None:
        raise InputError(
            f"the model's chat template leaves out {missing}; a model tuned to call tools is needed, or messages in "
            f"which calls and answers are texts"
        )


def _marked(message: JsonDict, mark: Callable[[str], str]) -> JsonDict:
    if message["role"] == "tool":
        content: Any = mark("what a tool answers")
        if not isinstance(message["content"], str):
            content = [{"type": "text", "text": content}]
        return message | {"content": content}
    if CALLS in message:
        return message | {CALLS: [_named(one, mark("a call of a tool")) for one in message[CALLS]]}
    return message


def _named(values: JsonDict, name: str) -> JsonDict:
    return values | {"function": values["function"] | {"name": name}}
