"""YAML text → plain values: safely, every key once, not deeper than anything here needs, mistakes as one sentence.

A module of its own because importing PyYAML takes longer than reading the shipped catalog.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import yaml

from vlmplan.errors import InputError
from vlmplan.json_reader import repeated, too_deep, too_many_digits

MAX_DEPTH = 20
"""A catalog needs 4, a curriculum 3."""


def parse_yaml(text: str, *, source: str) -> list[Any]:
    """The documents in ``text``; ``source`` names it in errors. Raises InputError for what is not YAML."""
    _require_shallow(source, text)
    return list(yaml_documents(source, text))


def yaml_documents(source: str, text: str) -> Iterator[object]:
    """The documents of a text of our own, each parsed when it is asked for; nesting is not looked at."""
    return _said_clearly(source, yaml.load_all(text, Loader=_loader()))


class _RepeatedKeyError(yaml.YAMLError):
    """A key is given twice in one mapping."""


@cache
def _loader() -> Any:
    """PyYAML's safe loader, in C where it was built with libyaml, that also refuses a key given twice."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    construct_mapping: Any = base.construct_mapping

    def construct_unique_keys(self: Any, node: Any, deep: bool = False) -> Any:
        num_keys = len(node.value)
        mapping = construct_mapping(self, node, deep)
        if len(mapping) < num_keys:
            keys = [str(key.value) for key, _ in node.value]
            raise _RepeatedKeyError(next((key for key in keys if keys.count(key) > 1), "a key"))
        return mapping

    return type("UniqueKeyLoader", (base,), {"construct_mapping": construct_unique_keys})


def _require_shallow(source: str, text: str) -> None:
    """Raise InputError for deep nesting, before libyaml recurses into it without a limit and crashes."""
    events: Any = cast(Any, yaml).parse(text, Loader=_loader())
    depth = 0
    for event in _said_clearly(source, events):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InputError(too_deep(source))


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
    except yaml.YAMLError as error:
        raise InputError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:  # of a number of thousands of digits, or of a day that no calendar has
        said = str(error)
        message = too_many_digits(source) if "digits" in said else f"{source} is not YAML: {said}"
        raise InputError(message) from None
