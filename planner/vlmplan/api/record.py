"""What results and their parts have in common: values of a JSON document that stay as they are.

Light: imports nothing of vlmplan before it is needed.
"""

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

Verdict = Literal["fits", "tight", "does_not_fit"]


def parsed(text: str) -> Any:
    import json  # not with vlmplan, which is to be imported in no time

    return json.loads(text)


class Record:
    """Frozen, equal to another of the same document, and pickled as texts."""

    __slots__ = ("_json", "_more", "_values")
    _json: str
    _more: Mapping[str, Any]
    _values: Mapping[str, Any]

    def __init__(self, document: str, more: Mapping[str, Any] | None = None) -> None:
        """``document`` is JSON as text; ``more`` is what attributes need besides: texts, numbers and lists of them."""
        for name, value in (("_json", document), ("_more", more or {}), ("_values", parsed(document))):
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """The document of the result as ``--json`` prints it, as a new dict."""
        return parsed(self._json)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(other) is type(self) and self._json == other._json

    def __hash__(self) -> int:
        return hash((type(self), self._json))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._json, self._more)


class Result(Record):
    """An answer as a whole."""

    def __str__(self) -> str:
        """What the command prints, without colours."""
        return self._more["text"]

    def _repr_html_(self) -> str:
        """What a notebook shows: HTML that brings everything with it, in the colours of the page around it."""
        return self._more["html"]
