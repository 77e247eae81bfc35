"""The training command of a shell script, changed word by word."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.other_trainers.editing.splices import Splice, indentation, line_start, newline_of, spliced
from vlmplan.other_trainers.shell import Command

SHELL_ONLY = re.compile(r"[$`*?\[~]")
"""In a word: what only a shell makes a value of."""


class ScriptEditor:
    """A script and its command that trains. ``equals``: options are ``key=value``, as ``llamafactory-cli`` takes them
    beside a file."""

    def __init__(self, text: str, command: Command, *, source: str, equals: bool = False) -> None:
        self._text, self._command, self._source, self._equals = text, command, source, equals
        self._words = list(zip(command.words, command.spans, strict=True))

    def edited(
        self, values: Mapping[str, Any], variables: Mapping[str, str], near: Mapping[str, Sequence[str]]
    ) -> tuple[str, list[str]]:
        """The text with these options and variables, None takes an option away; and what stood in the script where a
        variable was written out. Raises InputError for an option that stands there twice."""
        notes: list[str] = []
        splices: list[Splice] = []
        removed = {key for key, value in values.items() if value is None}
        for key, value in values.items():
            place = self._place(key)
            if place is None:
                splices += [] if value is None else [self._inserted(key, value, near.get(key, ()), removed)]
                continue
            first, last = place
            if value is None:
                splices.append(self._removed(first, last))
                continue
            splices.append(self._replaced(value, first, last))
            present = self._text[splices[-1].start : splices[-1].end]
            if SHELL_ONLY.search(present):
                notes.append(f"{shown(present)} is written out; what the script computes of its variables stays")
        splices += (self._variable(name, value) for name, value in variables.items())
        return spliced(self._text, splices), notes

    # -- options -----------------------------------------------------------------------------------------------------

    def _place(self, key: str) -> tuple[int, int] | None:
        """The first and the last word of an option and its values; None where it is not there."""
        found = [place for place, (word, _) in enumerate(self._words) if self._key_of(word) == key]
        if not found:
            return None
        if len(found) > 1:
            raise InputError(f"{self._source} gives {key} {len(found)} times; keep one of them")
        first = last = found[0]
        if not self._equals and "=" not in self._words[first][0]:
            while last + 1 < len(self._words) and not self._words[last + 1][0].startswith("--"):
                last += 1
        self._require_own_words(key, first, last)
        return first, last

    def _require_own_words(self, key: str, first: int, last: int) -> None:
        """Raise InputError for an option that an expansion makes together with other words."""
        option, values = self._words[first][1], {span for _, span in self._words[first + 1 : last + 1]}
        others = [span for place, (_, span) in enumerate(self._words) if not first <= place <= last]
        if option in values or any(span == option or span in values for span in others):
            text = shown(self._text[slice(*option)])
            raise InputError(f"{self._source}: {key} comes with others from {text}; write it out in the command")

    def _key_of(self, word: str) -> str | None:
        if self._equals and not word.startswith("-") and "=" in word:
            return word.partition("=")[0]
        return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else None

    def _replaced(self, value: Any, first: int, last: int) -> Splice:
        """The value alone; the option's name stays as it is written."""
        (start, end), word = self._words[first][1], self._text[slice(*self._words[first][1])]
        name, equals, _ = word.partition("=")
        if equals:
            return Splice(start + len(name) + 1, end, _word(value))
        if first == last:
            return Splice(end, end, f" {_word(value)}")
        return Splice(self._words[first + 1][1][0], self._words[last][1][1], _word(value))

    def _removed(self, first: int, last: int) -> Splice:
        """The span of the words with the blanks before it and the backslash that continued the line."""
        return Splice(self._words[first - 1][1][1], self._words[last][1][1], "")

    def _inserted(self, key: str, value: Any, near: Sequence[str], removed: set[str]) -> Splice:
        """The splice that puts an option after the one that it is best put after, or at the end, in a line of its own
        where the others are."""
        named = (place for name in near if name not in removed and (place := self._place(name)) is not None)
        first, last = next(named, (None, self._last_kept(removed)))
        if first is None:
            first = max((place for place in range(last + 1) if self._key_of(self._words[place][0])), default=0)
        start = self._words[first][1][0]
        indent = indentation(self._text, start)
        begins_line = first > 0 and line_start(self._text, start) + len(indent) == start
        between = f" \\{newline_of(self._text)}{indent}" if begins_line else " "
        end = self._words[last][1][1]
        option = f"{key}={_word(value)}" if self._equals else f"--{key} {_word(value)}"
        return Splice(end, end, between + option)

    def _last_kept(self, removed: set[str]) -> int:
        """The last word that no option is taken away with."""
        gone = {
            word for key in removed if (place := self._place(key)) is not None for word in range(place[0], place[1] + 1)
        }
        return max(place for place in range(len(self._words)) if place not in gone)

    # -- variables ---------------------------------------------------------------------------------------------------

    def _variable(self, name: str, value: str) -> Splice:
        """The variable with this value, where it is set, or before the command."""
        place = self._command.assignments.get(name)
        if place is not None:
            return Splice(*place, f"{name}={_word(value)}")
        start = self._command.start
        indent, newline = indentation(self._text, start), newline_of(self._text)
        return Splice(start, start, f"{name}={_word(value)} \\{newline}{indent}")


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(shlex.quote(str(one)) for one in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return shlex.quote(str(value))
