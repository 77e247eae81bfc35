"""Where the keys and values of a JSON text stand."""

import json
from typing import Any

from vlmplan.other_trainers.editing.objects import Member, TextObject

BLANKS = " \t\r\n"


def object_in_json(text: str) -> TextObject:
    """The object that the text is, which was read before."""
    return _object(text, _after_blanks(text, 0))


def _object(text: str, start: int) -> TextObject:
    decoder, members = json.JSONDecoder(), list[Member]()
    position = _after_blanks(text, start + 1)
    while text[position] != "}":
        key_start = position
        key, position = decoder.raw_decode(text, position)
        value_start = _after_blanks(text, _after_blanks(text, position) + 1)
        value: Any
        value, position = decoder.raw_decode(text, value_start)
        inner = _object(text, value_start) if isinstance(value, dict) and value else None
        members.append(Member(key, key_start, value_start, position, inner))
        position = _after_blanks(text, position)
        if text[position] == ",":
            position = _after_blanks(text, position + 1)
    return TextObject(tuple(members), is_block=False)


def _after_blanks(text: str, position: int) -> int:
    while text[position : position + 1] and text[position] in BLANKS:
        position += 1
    return position
