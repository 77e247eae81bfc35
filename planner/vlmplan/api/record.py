"""What results and their parts have in common: values of a JSON document that stay as they are.

Light: imports nothing of vlmplan before it is needed.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast, overload

if TYPE_CHECKING:
    from typing_extensions import Self

Verdict = Literal["fits", "tight", "does_not_fit"]
T = TypeVar("T")


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


class Value(Generic[T]):
    """An attribute that is the value of its name in the document, or the one ``at`` a path of names with dots between.

    Lists come as tuples, and a mapping is a new one each time, so that the result stays as it is.
    """

    def __init__(self, doc: str, *, at: str | None = None) -> None:
        self.__doc__, self._path = doc, at

    def __set_name__(self, owner: type, name: str) -> None:
        self._path = self._path or name

    @overload
    def __get__(self, result: None, owner: type) -> "Self": ...
    @overload
    def __get__(self, result: Record, owner: type) -> T: ...
    def __get__(self, result: Record | None, owner: type) -> Any:
        if result is None:
            return self
        found: Any = result._values  # pyright: ignore[reportPrivateUsage]
        for name in str(self._path).split("."):
            found = found[name]
        return tuple(deepcopy(cast(list[Any], found))) if isinstance(found, list) else deepcopy(found)

    def __set__(self, result: Record, value: object) -> NoReturn:
        raise AttributeError(f"{self._path} cannot be set")


class Result(Record):
    """An answer as a whole."""

    def __str__(self) -> str:
        """What the command prints, without colours."""
        return self._more["text"]

    def _repr_html_(self) -> str:
        """What a notebook shows: HTML that brings everything with it, in the colours of the page around it."""
        return self._more["html"]
