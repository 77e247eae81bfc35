"""Values of a caller by the types of ``options``: what is taken, and the sentence for what is not."""

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.notes import listed

Members = tuple[Any, ...]
"""What a type is made of: the choices of a Literal, the items of a sequence."""


def checked(name: str, value: Any, hint: Any) -> Any:
    """``value`` as one of the types of ``hint``: a path as text, a number as int or float, a sequence as a tuple.

    Raises InputError for one of another type, and for an empty path.

    >>> checked("lora_rank", 16, int | None), checked("epochs", 2, float | None)
    (16, 2.0)
    """
    kinds = members_of(hint)
    for kind in kinds:
        origin = get_origin(kind) or kind
        is_of, reads, _ = KINDS[origin]
        if is_of(value, get_args(kind)):
            if value == "" and any(get_origin(other) is os.PathLike for other in kinds):
                raise InputError(f"{name} is empty; a path is needed")
            return reads(value)
    needed = listed([KINDS[get_origin(kind) or kind][2](get_args(kind)) for kind in kinds], last="or")
    raise InputError(f"{name} is {shown(value)}; {needed} is needed")


def members_of(hint: Any) -> Members:
    """The types that a union is of; a type that is none by itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_whole(value: Any, _: Members) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_choice(value: Any, choices: Members) -> bool:
    return any(type(value) is type(choice) and value == choice for choice in choices)


def _is_size(value: Any, _: Members) -> bool:
    """Whether it is (width, height)."""
    return (
        isinstance(value, tuple | list)
        and len(sides := cast(Sequence[Any], value)) == 2
        and all(_is_whole(side, ()) for side in sides)
    )


def _is_sequence(value: Any, members: Members) -> bool:
    kinds = members_of(members[0])
    items: Sequence[Any] = cast(Sequence[Any], value) if isinstance(value, tuple | list) else ()
    return isinstance(value, tuple | list) and all(
        any(KINDS[get_origin(kind) or kind][0](item, get_args(kind)) for kind in kinds) for item in items
    )


def _texts(items: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, items))


def _unchanged(value: Any) -> Any:
    return value


KINDS: Mapping[Any, tuple[Callable[[Any, Members], bool], Callable[[Any], Any], Callable[[Members], str]]] = {
    NoneType: (lambda value, _: value is None, _unchanged, lambda _: "None"),
    bool: (lambda value, _: isinstance(value, bool), _unchanged, lambda _: "True or False"),
    int: (_is_whole, int, lambda _: "a whole number"),
    float: (lambda value, _: not isinstance(value, bool) and isinstance(value, Real), float, lambda _: "a number"),
    str: (lambda value, _: isinstance(value, str), _unchanged, lambda _: "a text"),
    os.PathLike: (lambda value, _: isinstance(value, os.PathLike), os.fspath, lambda _: "a path"),
    Literal: (_is_choice, _unchanged, lambda choices: "one of " + ", ".join(map(repr, choices))),
    tuple: (_is_size, tuple, lambda _: "(width, height)"),
    Sequence: (_is_sequence, _texts, lambda _: "a sequence of them"),
    Mapping: (lambda value, _: isinstance(value, Mapping), _unchanged, lambda _: "a mapping"),
}
"""By type: whether a value is of it, how it is taken, and its words."""
