"""YAML text → plain values: safely, no deeper or larger than anything here needs, every key once where none may repeat,
mistakes as one sentence. An alias counts as all that it stands for: twelve lines of aliases of aliases are a text
without end.

A module of its own because importing PyYAML takes longer than reading the shipped catalog.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn, cast

import yaml

from vlmplan.errors import InputError
from vlmplan.files.json_reader import first_repeated, repeated, shown, too_deep, too_many_digits

MAX_DEPTH = 20
"""A catalog needs 4, a curriculum 3."""
MAX_NODES = 200_000
"""Values and keys; 10,000 offers in a catalog have 160,000."""
MAX_NUMBER_CHARACTERS = 1000
"""Of a scalar that could be a number, which for some forms takes the square of its length to read."""
TAGS = "tag:yaml.org,2002:"
TRUSTING = ("bool", "int", "float", "timestamp")
"""Tags whose constructors in PyYAML believe in what a text says with them: they raise whatever Python does."""
NUMBER_BEGINS = tuple("+-.0123456789")
NUMBER_CHARACTERS = frozenset("+-_.:0123456789abcdefABCDEFxo")


def parse_yaml(text: str, *, source: str, repeats: list[str] | None = None) -> list[Any]:
    """The documents in ``text``; ``source`` names it in errors. Raises InputError for what is not YAML, and for a key
    that is given twice; where ``repeats`` are kept, its last value is taken, as PyYAML does, and it is among them."""
    _require_modest(source, text)
    if repeats is None:
        return list(yaml_documents(source, text))
    return list(_said_clearly(source, yaml.load_all(text, Loader=_loader_of(repeats.append))))


def yaml_documents(source: str, text: str) -> Iterator[object]:
    """The documents of a text of our own, each parsed when it is asked for; nesting is not looked at."""
    return _said_clearly(source, yaml.load_all(text, Loader=_loader()))


class _RepeatedKeyError(yaml.YAMLError):
    """A key is given twice in one mapping."""


@cache
def _loader() -> Any:
    """A loader that refuses a key given twice."""

    def refuse(key: str) -> NoReturn:
        raise _RepeatedKeyError(key)

    return _loader_of(refuse)


def _loader_of(repeated_key: Callable[[str], None]) -> Any:
    """PyYAML's safe loader, in C where it was built with libyaml, that says which key of a mapping is given twice."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    construct_mapping: Any = base.construct_mapping

    def construct_unique_keys(self: Any, node: Any, deep: bool = False) -> Any:
        num_keys = len(node.value)
        mapping = construct_mapping(self, node, deep)
        if len(mapping) < num_keys:
            repeated_key(first_repeated(str(key.value) for key, _ in node.value) or "a key")
        return mapping

    loader: Any = type("UniqueKeyLoader", (base,), {"construct_mapping": construct_unique_keys})
    loader.yaml_constructors = base.yaml_constructors | {
        f"{TAGS}{name}": _named(name, base.yaml_constructors[f"{TAGS}{name}"]) for name in TRUSTING
    }
    return loader


def _named(name: str, construct: Any) -> Any:
    """A constructor that says which value in which line is not what its tag says."""

    def constructed(self: Any, node: Any) -> Any:
        try:
            return construct(self, node)
        except (KeyError, AttributeError, IndexError, TypeError, ValueError):
            problem = f"{shown(node.value)} is no !!{name}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    return constructed


@dataclass(slots=True)
class _Extent:
    """The extent of a value: how many values are in it with itself, and the levels below it."""

    num_nodes: int = 1
    depth: int = 0

    def add(self, part: "_Extent") -> None:
        self.num_nodes += part.num_nodes
        self.depth = max(self.depth, 1 + part.depth)


def _require_modest(source: str, text: str) -> None:
    """Raise InputError for what is nested deeply, before libyaml recurses into it without a limit and crashes, and for
    aliases that stand for more than anything needs."""
    events: Any = cast(Any, yaml).parse(text, Loader=_loader())
    open_parts = [_Extent()]
    names: list[str | None] = [None]
    anchored: dict[str | None, _Extent] = {}
    for event in _said_clearly(source, events):
        if isinstance(event, yaml.CollectionStartEvent):
            open_parts.append(_Extent())
            names.append(event.anchor)
            part = None
        elif isinstance(event, yaml.CollectionEndEvent):
            part = open_parts.pop()
            anchored[names.pop()] = part
        elif isinstance(event, yaml.ScalarEvent):
            part = anchored[event.anchor] = _Extent()
            _require_short_number(source, event.value)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise InputError(f"{source} has the alias *{event.anchor} within what it stands for")
            part = anchored.get(event.anchor)  # of an unknown one the parser says so
        else:
            continue
        if part is not None:
            open_parts[-1].add(part)
        if len(open_parts) + open_parts[-1].depth > MAX_DEPTH + 1:
            raise InputError(too_deep(source))
        if sum(part.num_nodes for part in open_parts) > MAX_NODES:
            raise InputError(f"{source} has more than {MAX_NODES:,} values, those that its aliases repeat included")


def _require_short_number(source: str, text: str) -> None:
    if len(text) > MAX_NUMBER_CHARACTERS and text.startswith(NUMBER_BEGINS) and NUMBER_CHARACTERS.issuperset(text):
        raise InputError(too_many_digits(source))


def _said_clearly(source: str, parts: Iterator[object]) -> Iterator[object]:
    """``parts`` of a YAML text, what is wrong with it as InputError."""
    try:
        yield from parts
    except _RepeatedKeyError as error:
        raise InputError(repeated(source, str(error))) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{source} is not YAML: {error.problem or error.context}{place}") from None
    except yaml.reader.ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise InputError(
            f"{source} is not YAML: it has the character U+{code:04X}, which no text of YAML may"
        ) from None
    except yaml.YAMLError as error:
        raise InputError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except (KeyError, AttributeError, IndexError, TypeError, ValueError):  # of a tag that is not looked for
        raise InputError(f"{source} is not YAML: a value is not what its tag says") from None
