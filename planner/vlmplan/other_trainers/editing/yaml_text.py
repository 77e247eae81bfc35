"""Where the keys and values of a YAML text stand, by PyYAML's marks."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import yaml

from vlmplan.errors import InputError
from vlmplan.other_trainers.editing.objects import Member, TextObject

ALIAS = re.compile(r"\s*:\s*(\*[^\s,\]}]+)")


def object_in_yaml(text: str, *, source: str) -> TextObject:
    """The mapping that the first document is. ``text`` is YAML that was read before. Raises InputError for another
    value."""
    root: Any = next(iter(cast(Any, yaml).compose_all(text, Loader=yaml.SafeLoader)), None)
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{source} holds no keys that could be changed")
    pairs = list(_pairs(root))
    uses = Counter(id(value) for _, value in pairs)
    names: dict[int, list[str]] = {}
    for key, value in pairs:
        names.setdefault(id(value), []).append(str(key.value))
    return _object(text, root, {place: names[place] for place, count in uses.items() if count > 1})


def _pairs(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every key of a tree with its value, what an alias stands for once for each place."""
    if isinstance(node, yaml.MappingNode):
        for key, value in cast(list[tuple[Any, Any]], node.value):
            yield key, value
            yield from _pairs(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in cast(list[Any], node.value):
            yield from _pairs(value)


def _object(text: str, node: Any, shared: dict[int, list[str]]) -> TextObject:
    members = tuple(_member(text, key, value, shared) for key, value in node.value)
    return TextObject(members, is_block=not node.flow_style)


def _member(text: str, key: Any, value: Any, shared: dict[int, list[str]]) -> Member:
    name, start = str(key.value), key.start_mark.index
    if value.start_mark.index < start:  # an alias: what it stands for is somewhere above
        alias = ALIAS.match(text, key.end_mark.index)
        assert alias is not None
        return Member(name, start, alias.start(1), alias.end(1))
    inner = _object(text, value, shared) if isinstance(value, yaml.MappingNode) and value.value else None
    begin = value.start_mark.index
    if not isinstance(value, yaml.ScalarNode) and not value.flow_style:  # in lines of its own
        begin = text.index(":", key.end_mark.index) + 1
    others = [other for other in shared.get(id(value), ()) if other != name]
    return Member(name, start, begin, _end(value), inner, others[0] if others else None)


def _end(node: Any) -> int:
    """The place after the last character of a value; marks of block collections are after the comments that follow."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style and node.value:
        pairs = cast(list[tuple[Any, Any]], node.value)
        return max(max(key.end_mark.index, _end(value)) for key, value in pairs)  # an alias ends where its text does
    if isinstance(node, yaml.SequenceNode) and not node.flow_style and node.value:
        return max(_end(value) for value in cast(list[Any], node.value))
    return int(node.end_mark.index)
