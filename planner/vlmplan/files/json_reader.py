"""Reading JSON that others wrote: every mistake becomes one sentence with the file, the key's path and what is needed.

``JsonObject`` hands out the values of one object by kind and remembers which keys were asked for, so that ``close``
can refuse the rest. What ``files.yaml_reader`` reads is looked at with it too: the sentences are the same.
"""

import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from vlmplan.errors import InputError, UnknownNameError
from vlmplan.files.read_write import NOT_JSON, text_of

T = TypeVar("T")
OPEN_END = re.compile(r"( starting)? at$|: ?$")
"""How Python's sentences end before a place."""
MAX_WHOLE = 2**63 - 1
"""The largest number of bytes, or of anything else, that a file or a tensor can have."""
JsonDict = dict[str, Any]
"""A JSON object as Python has it: of a document that is printed, kept or read."""


def read_json_object(path: Path) -> JsonDict:
    """The JSON object in a file. Raises UnavailableError if it cannot be read, InputError if it holds anything else."""
    text = text_of(path, name=str(path), otherwise=NOT_JSON)
    return parse_json_object(text, source=str(path))


def parse_json_object(
    text: str, *, source: str, constant: Callable[[str], Any] | None = None, may_repeat: bool = False
) -> JsonDict:
    """The JSON object in ``text``, as ``parse_json`` reads it. Raises InputError if it holds anything else."""
    values = parse_json(text, source=source, constant=constant, may_repeat=may_repeat)
    if not isinstance(values, dict):
        raise InputError(f"{source} holds {shown(values)}; a JSON object {{...}} is needed")
    return cast(JsonDict, values)


def parse_json(
    text: str, *, source: str, constant: Callable[[str], Any] | None = None, may_repeat: bool = False
) -> Any:
    """The JSON in ``text``; ``source`` names it in errors. Refuses comments, and repeated keys unless they may.

    ``constant`` makes a value of NaN, Infinity and -Infinity, which are refused without it.
    """

    def refused(name: str) -> NoReturn:
        raise InputError(f"{source} holds {name}, which is no JSON number")

    def without_repeats(pairs: list[tuple[str, Any]]) -> JsonDict:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise InputError(repeated(source, first_repeated(key for key, _ in pairs) or "a key"))
        return result

    with json_mistakes(source, text):
        return json.loads(
            text, parse_constant=constant or refused, object_pairs_hook=None if may_repeat else without_repeats
        )


def repeated_keys(text: str) -> tuple[str, ...]:
    """Of each object in JSON without mistakes the first key that it has more than once.

    >>> repeated_keys('{"a": 1, "b": {"c": 1, "c": 2}, "a": 2}')
    ('c', 'a')
    """
    found: dict[str, None] = {}

    def noted(pairs: list[tuple[str, Any]]) -> JsonDict:
        result = dict(pairs)
        if len(result) < len(pairs):
            found[first_repeated(key for key, _ in pairs) or "a key"] = None
        return result

    json.loads(text, object_pairs_hook=noted)
    return tuple(found)


def json_text(values: Mapping[str, Any], *, source: str) -> str:
    """What a program has in memory, as the file that it would be. Raises InputError for what no JSON can be."""
    try:
        return json.dumps(dict(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{source} holds what no JSON can ({error})") from None


@contextmanager
def json_mistakes(source: str, text: str | None = None) -> Generator[None]:
    """What ``json`` raises, as InputError. ``text`` is looked at for comments, or for there being none."""
    try:
        yield
    except json.JSONDecodeError as error:
        line = None if text is None else comment_line(text)
        if line is not None:
            message = f"{source} has a comment in line {line}; JSON knows none, so take it out"
        elif text is not None and not text.strip():
            message = f"{source} is empty; a JSON object {{...}} is needed"
        else:
            message = f"{source} is not JSON: {OPEN_END.sub('', error.msg)} {_place(error)}"
        raise InputError(message) from None
    except RecursionError:
        raise InputError(too_deep(source)) from None
    except ValueError:  # Python reads no integer of more than 4300 digits
        raise InputError(too_many_digits(source)) from None


def _place(error: json.JSONDecodeError) -> str:
    """Where in its text an error is; of a single line, such as one of JSONL, which the file names, only the column."""
    text = error.doc.rstrip()
    if error.pos >= len(text):
        return "at its end"
    return f"in line {error.lineno}, column {error.colno}" if "\n" in text else f"in column {error.colno}"


# -- sentences that JSON and YAML share ------------------------------------------------------------------------------


def repeated(source: str, key: str) -> str:
    return f"{source} says {key} twice in one object; one of the two has to go"


def first_repeated(keys: Iterable[str]) -> str | None:
    """The first key that occurs a second time; None if no key does. An object may have a million keys.

    >>> first_repeated("abcb")
    'b'
    """
    before: set[str] = set()
    for key in keys:
        if key in before:
            return key
        before.add(key)
    return None


def too_deep(source: str) -> str:
    return f"{source} is nested too deeply to be read"


def too_many_digits(source: str) -> str:
    return f"{source} holds a number of thousands of digits, which nothing can mean"


def not_allowed(source: str, path: str, value: object, needed: str) -> InputError:
    """The error for the value at ``path`` of a file (``source``, if known); ``needed`` is what may stand there."""
    place = f"{source}: " if source else ""
    return InputError(f"{place}{path or 'the whole'} is {shown(value)}; {needed} is needed")


def unknown_key(source: str, path: str, key: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a key that the object at ``path`` of a file does not have; it names the nearest that it has."""
    return UnknownNameError("key", key, known, f"in {path} of {source}" if path else f"in {source}")


def comment_line(text: str) -> int | None:
    """The line of the first ``//``, ``/*`` or ``#`` outside of strings."""
    in_string = escapes = False
    for position, character in enumerate(text):
        if in_string:
            if escapes:
                escapes = False
            elif character == "\\":
                escapes = True
            elif character in '"\n':
                in_string = False
        elif character == '"':
            in_string = True
        elif character == "#" or text.startswith(("//", "/*"), position):
            return text.count("\n", 0, position) + 1
    return None


def _iso_date(value: object) -> str:
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError


def shown(value: Any, limit: int = 60) -> str:
    """A value as it stands in JSON, cut short; a date of YAML as it is written there.

    >>> shown({"saved": date(2026, 1, 31)}), shown({"__float__": "NaN"})
    ('{"saved": "2026-01-31"}', 'NaN')
    """
    one: Any = value
    if isinstance(value, dict) and one.keys() == {"__float__"}:  # how transformers writes a number that JSON lacks
        return str(one["__float__"])[:limit]
    try:
        text = json.dumps(one, ensure_ascii=False, default=_iso_date)
    except (TypeError, ValueError, RecursionError):
        try:
            text = repr(one)
        except (ValueError, RecursionError):  # Python writes no integer of more than 4300 digits
            text = f"a value of the kind {type(one).__name__} that is too long to be shown"
    return text if len(text) <= limit else text[: limit - 3] + "..."


class JsonObject:
    """One JSON object. ``source`` is the file, ``path`` the object's place in it (empty for the outermost).

    The readers raise InputError for a key that is missing or of another kind; ``maybe`` gives None for one that is
    missing or null.
    """

    __slots__ = ("_asked", "path", "source", "values")

    def __init__(self, values: Any, *, source: str, path: str = "") -> None:
        self.source, self.path = source, path
        if not isinstance(values, Mapping):
            raise not_allowed(source, path, values, "an object {...}")
        for key in cast(Mapping[object, object], values):
            if not isinstance(key, str):  # YAML has other keys too
                raise InputError(f"{source}: {path or 'the whole'} has the key {shown(key)}; put it in quotes")
        self.values = cast(Mapping[str, Any], values)
        self._asked: set[str] = set()

    def key_path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def raw(self, key: str) -> Any:
        """The value as it is."""
        self._asked.add(key)
        if key not in self.values:
            raise InputError(f"{self.source}: {self.key_path(key)} is missing")
        return self.values[key]

    def maybe(self, key: str, read: Callable[[str], T]) -> T | None:
        """``read(key)``, or None where the key is missing or null."""
        self._asked.add(key)
        return None if self.values.get(key) is None else read(key)

    def refuse(self, key: str, needed: str) -> NoReturn:
        """Raise the sentence for a value that is not allowed; ``needed`` says what is."""
        raise not_allowed(self.source, self.key_path(key), self.values.get(key), needed)

    def complain(self, key: str, why: str) -> NoReturn:
        """Raise the sentence that names the key, its value and ``why`` that will not do."""
        raise InputError(f"{self.source}: {self.key_path(key)} is {shown(self.values.get(key))}; {why}")

    def flag(self, key: str) -> bool:
        value = self.raw(key)
        return value if isinstance(value, bool) else self.refuse(key, "true or false")

    def text(self, key: str) -> str:
        value = self.raw(key)
        return value if isinstance(value, str) else self.refuse(key, "text")

    def count(self, key: str, *, least: int = 0, most: int = MAX_WHOLE) -> int:
        """A whole number; ``5e8`` is one, ``true`` and ``0.5`` are not."""
        value = self.raw(key)
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole or value < least:
            self.refuse(key, f"a whole number of {least} or more")
        if value > most:
            self.refuse(key, f"a whole number of at most {most:,}")
        return int(value)

    def number(self, key: str, *, least: float = 0.0) -> float:
        value = self.raw(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= sys.float_info.max:
            self.refuse(key, f"a number of {least:g} or more")
        return float(value)

    def choice(self, key: str, known: Iterable[str]) -> str:
        value, names = self.raw(key), list(known)
        return value if isinstance(value, str) and value in names else self.refuse(key, f"one of {', '.join(names)}")

    def object(self, key: str) -> "JsonObject":
        return JsonObject(self.raw(key), source=self.source, path=self.key_path(key))

    def mapping(self, key: str) -> JsonDict:
        """An object whose keys are not looked at."""
        return dict(self.object(key).values)

    def objects(self, key: str) -> list["JsonObject"]:
        items = self.array(key)
        paths = [f"{self.key_path(key)}[{index}]" for index in range(len(items))]
        return [JsonObject(item, source=self.source, path=path) for item, path in zip(items, paths, strict=True)]

    def texts(self, key: str) -> tuple[str, ...]:
        items = self.array(key)
        if not all(isinstance(item, str) for item in items):
            self.refuse(key, "a list of texts")
        return tuple(items)

    def array(self, key: str) -> Sequence[Any]:
        value = self.raw(key)
        return cast(Sequence[Any], value) if isinstance(value, list) else self.refuse(key, "a list")

    def close(self, known: Iterable[str] = ()) -> None:
        """Refuse keys that were not read and are not ``known``; the message names the nearest known one."""
        names = self._asked | set(known)
        for key in self.values:
            if key not in names:
                raise unknown_key(self.source, self.path, key, sorted(names))
