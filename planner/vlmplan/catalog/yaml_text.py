"""YAML text → plain values: safely, every key once, not deeper than a catalog needs, mistakes as one sentence.

A module of its own because importing PyYAML takes longer than reading the shipped catalog.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, cast

import yaml

from vlmplan.errors import InputError

MAX_DEPTH = 20


@cache
def _loader() -> Any:
    """PyYAML's safe loader, in C where it was built with libyaml, that also refuses a key given twice."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    construct_mapping: Any = base.construct_mapping

    def construct_unique_keys(self: Any, node: Any, deep: bool = False) -> Any:
        num_keys = len(node.value)
        mapping = construct_mapping(self, node, deep)
        if len(mapping) < num_keys:
            raise yaml.MarkedYAMLError(None, None, "a key is given twice in one mapping", node.start_mark)
        return mapping

    return type("UniqueKeyLoader", (base,), {"construct_mapping": construct_unique_keys})


def require_shallow(name: str, text: str) -> None:
    """Raise InputError for deep nesting, before libyaml recurses into it without a limit and crashes."""
    events: Any = cast(Any, yaml).parse(text, Loader=_loader())
    depth = 0
    for event in _said_clearly(name, events):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InputError(f"{name} nests deeper than {MAX_DEPTH} levels; a catalog needs 4")


def yaml_documents(name: str, text: str) -> Iterator[object]:
    return _said_clearly(name, yaml.load_all(text, Loader=_loader()))


def _said_clearly(name: str, parts: Iterator[object]) -> Iterator[object]:
    """``parts`` of a YAML text, what is wrong with it as InputError."""
    try:
        yield from parts
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise InputError(f"{name} is not valid YAML:{place} {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
