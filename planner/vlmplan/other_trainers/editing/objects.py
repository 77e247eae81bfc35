"""An object of a YAML or JSON text with the place of each key and value, changed in place.

Only the characters of what changes are touched: comments, order, quotes, indentation and line ends stay as they are.
A round trip through ruamel.yaml 0.19 would write 19 of 67 YAML files that trainers ship differently where nothing
changes (lists, ``null``, empty lines).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlmplan.errors import InputError
from vlmplan.other_trainers.editing.splices import Splice, indentation, line_end, line_start, newline_of, spliced

Changes = Mapping[str, Any]
"""New values by key: None takes a key away, an object changes the keys in it."""
DEFAULT_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Member:
    """A key and its value. ``inner`` is what the value is, where it is an object. ``shared_with``: another key whose
    value this is too, so that changing it would change both."""

    key: str
    key_start: int
    value_start: int
    value_end: int
    inner: "TextObject | None" = None
    shared_with: str | None = None


@dataclass(frozen=True, slots=True)
class TextObject:
    """``is_block``: keys in lines of their own, as YAML has them outside of braces."""

    members: tuple[Member, ...]
    is_block: bool

    def member(self, key: str) -> Member | None:
        return next((one for one in self.members if one.key == key), None)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How values are written. ``near``: for a new key those that it is best put after, the best first."""

    source: str
    is_json: bool
    near: Mapping[str, Sequence[str]]


def edited(text: str, root: TextObject, changes: Changes, style: TextFormat) -> str:
    """The text with these keys changed. Raises InputError for a value that cannot be changed by itself."""
    return spliced(text, _splices(text, root, changes, style))


def _splices(text: str, parent: TextObject, changes: Changes, style: TextFormat) -> Iterator[Splice]:
    removed = {key for key, value in changes.items() if value is None and parent.member(key) is not None}
    added: dict[str, Any] = {}
    for key, value in changes.items():
        member = parent.member(key)
        if (count := [one.key for one in parent.members].count(key)) > 1:
            raise InputError(f"{style.source} gives {key} {count} times; keep one of them")
        if member is None:
            added |= {} if value is None else {key: value}
        elif value is not None:
            yield from _replaced(text, member, value, style)
    if removed and not parent.is_block:
        yield from _removed_in_braces(parent, removed)
    else:
        for key in removed:
            yield _removed_line(text, parent, key)
    yield from _added(text, parent, added, removed, style)


def _replaced(text: str, member: Member, value: Any, style: TextFormat) -> Iterator[Splice]:
    if isinstance(value, Mapping) and member.inner is not None:
        yield from _splices(text, member.inner, value, style)  # pyright: ignore[reportUnknownArgumentType]
        return
    if member.shared_with is not None:
        raise InputError(
            f"{style.source}: the value of {member.key} is that of {member.shared_with} too, by an anchor, so that "
            f"changing it would change both; write it out at one of them"
        )
    present = text[member.value_start : member.value_end]
    written = _written(value, present, style)
    blank = " " if text[member.value_start - 1] == ":" and not style.is_json else ""
    yield Splice(member.value_start, member.value_end, blank + _shifted(written, indentation(text, member.key_start)))


def _removed_line(text: str, parent: TextObject, key: str) -> Splice:
    """The splice that takes out the lines of a key in block style."""
    member = parent.member(key)
    assert member is not None
    start, end = line_start(text, member.key_start), line_end(text, max(member.value_end - 1, member.key_start))
    for newline in ("\r\n", "\n"):
        if text.startswith(newline, end):
            return Splice(start, end + len(newline), "")
    return Splice(start, end, "")


def _removed_in_braces(parent: TextObject, removed: set[str]) -> Iterator[Splice]:
    """The splices that take these keys out, each with the comma that it no longer needs: that before it, or after the
    first ones."""
    members = parent.members
    kept = [one.key not in removed for one in members]
    first_kept = next((place for place, keeps in enumerate(kept) if keeps), None)
    for place, member in enumerate(members):
        if kept[place]:
            continue
        if first_kept is None or place < first_kept:
            end = member.value_end if place + 1 == len(members) else members[place + 1].key_start
            yield Splice(member.key_start, end, "")
        else:
            yield Splice(members[place - 1].value_end, member.value_end, "")


def _added(
    text: str, parent: TextObject, added: Mapping[str, Any], removed: set[str], style: TextFormat
) -> Iterator[Splice]:
    """New keys, each after the one that it is best put after, or at the end."""
    anchors = [one for one in parent.members if one.key not in removed]
    if added and not anchors:
        raise InputError(f"{style.source} holds an object without keys, to which none can be added in its style")
    for key, value in added.items():
        near = next((one for name in style.near.get(key, ()) for one in anchors if one.key == name), anchors[-1])
        indent = indentation(text, near.key_start)
        begins_line = line_start(text, near.key_start) + len(indent) == near.key_start
        written = f"{_key(key, style)}: {_written(value, '', style, spreads=begins_line)}"
        if parent.is_block:
            yield _new_line(text, near, indent, written)
            continue
        between = newline_of(text) + indent if begins_line else " "
        yield Splice(near.value_end, near.value_end, f",{between}{_shifted(written, indent)}")


def _new_line(text: str, near: Member, indent: str, written: str) -> Splice:
    place = line_end(text, max(near.value_end - 1, near.key_start))
    return Splice(place, place, f"{newline_of(text)}{indent}{written}")


def _key(key: str, style: TextFormat) -> str:
    return json.dumps(key) if style.is_json else key


def _shifted(written: str, indent: str) -> str:
    """The lines of an object where the line that it begins in is indented already."""
    return written.replace("\n", f"\n{indent}")


def _written(value: Any, present: str, style: TextFormat, *, spreads: bool = False) -> str:
    """The value as text; in the quotes and letters that ``present`` has. ``spreads``: an object over several lines."""
    if isinstance(value, Mapping):
        return json.dumps(value, indent=len(DEFAULT_INDENT) if spreads and style.is_json else None)
    if isinstance(value, bool):
        word = "true" if value else "false"
        if not style.is_json and present in ("True", "False", "TRUE", "FALSE"):
            word = word.upper() if present.isupper() else word.capitalize()
        return _quoted_as(word, present)
    if isinstance(value, (int, float)):
        return _quoted_as(str(value), present)
    if not isinstance(value, str):  # a list
        return json.dumps(value)
    if style.is_json or present.startswith('"'):
        return json.dumps(value, ensure_ascii=False)
    if present.startswith("'"):
        return "'" + value.replace("'", "''") + "'"
    is_plain = re.fullmatch(r"[A-Za-z./_][\w./+-]*", value, re.ASCII) and value.casefold() not in NOT_PLAIN
    return value if is_plain else json.dumps(value, ensure_ascii=False)


QUOTED = re.compile(r"""(["'])(?:[-+.\deE]*\d[-+.\deE]*|true|false)\1""", re.IGNORECASE)
"""A number or a truth value in quotes."""
NOT_PLAIN = frozenset("true false yes no on off null y n".split())
"""What YAML takes for something else than text."""


def _quoted_as(word: str, present: str) -> str:
    """A number or a truth value that stood in quotes does so again."""
    quoted = QUOTED.fullmatch(present)
    return word if quoted is None else f"{quoted[1]}{word}{quoted[1]}"
