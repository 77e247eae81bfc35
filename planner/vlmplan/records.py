"""Records: frozen, slotted, keyword-only dataclasses that are quick to import. A leaf: imports nothing of vlmplan.

``dataclasses.dataclass`` writes and compiles up to eight methods for each class: 0.45 ms, which for the 70 to 100
classes of a command is a fifth of the time that ``vlmplan estimate`` takes (measured, Python 3.11). A record compiles
``__init__`` alone; its other methods are closures over the names of its fields.

``dataclasses.fields``, ``replace``, ``asdict`` and ``field`` work as with any dataclass.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Says something to type checkers only."""
        return lambda decorator: decorator


Class = TypeVar("Class")
Values = Callable[[Any], tuple[Any, ...]]
"""Takes the values of some fields out of a record."""


@overload
def record(cls: type[Class], /) -> type[Class]: ...
@overload
def record(*, kw_only: bool) -> Callable[[type[Class]], type[Class]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[Any] | None = None, /, *, kw_only: bool = True) -> Any:
    """As ``@dataclass(frozen=True, slots=True, kw_only=True)``; with ``kw_only=False`` arguments go by place too.

    >>> @record
    ... class Price:
    ...     usd: float
    ...     hours: int = 1
    >>> Price(usd=0.5), Price(usd=0.5) == Price(usd=0.5, hours=1), hash(Price(usd=2.0)) == hash((2.0, 1))
    (Price(usd=0.5, hours=1), True, True)
    """
    if cls is None:
        return partial(_recorded, kw_only=kw_only)
    return _recorded(cls, kw_only=kw_only)


def _recorded(cls: type[Any], *, kw_only: bool) -> type[Any]:
    made: Any = _with_slots(dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls))
    own = fields(made)
    methods = {
        "__init__": _init(made, own),
        "__repr__": _repr([one.name for one in own if one.repr]),
        "__eq__": _eq(_values([one.name for one in own if one.compare])),
        "__hash__": _hash(_values([one.name for one in own if _is_hashed(one)])),
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
        "__getstate__": _state,
        "__setstate__": _set_state,
    }
    for name, method in methods.items():
        if made.__dict__.get(name) is None:  # what a class says itself stays
            setattr(made, name, method)
    return made


def _with_slots(cls: type[Any]) -> type[Any]:
    """The class again with a slot for each of its own fields: slots cannot be added to a class that is there."""
    inherited = {name for base in cls.__mro__[1:-1] for name in getattr(base, "__slots__", ())}
    names = [one.name for one in fields(cls)]
    left_out = {*names, "__dict__", "__weakref__"}
    members = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    members["__slots__"] = tuple([name for name in names if name not in inherited])
    metaclass: Any = type(cls)
    made: type[Any] = metaclass(cls.__name__, cls.__bases__, members)
    made.__qualname__ = cls.__qualname__
    return made


def _init(cls: type[Any], own: Sequence["Field[Any]"]) -> Any:
    """``__init__``, compiled: it fills the slots by their descriptors, since assignment is refused."""
    namespace: dict[str, Any] = {"MISSING": MISSING}
    parameters = ["self"]
    lines: list[str] = []
    for number, one in enumerate(sorted(own, key=attrgetter("kw_only"))):
        if one.kw_only and "*" not in parameters:
            parameters.append("*")
        namespace[f"set{number}"] = getattr(cls, one.name).__set__
        value = one.name
        if one.default is not MISSING:
            namespace[f"default{number}"] = one.default
            parameters.append(f"{one.name}=default{number}")
        elif one.default_factory is not MISSING:
            namespace[f"make{number}"] = one.default_factory
            parameters.append(f"{one.name}=MISSING")
            value = f"make{number}() if {one.name} is MISSING else {one.name}"
        else:
            parameters.append(one.name)
        lines.append(f"    set{number}(self, {value})")
    lines.append("    self.__post_init__()" if hasattr(cls, "__post_init__") else "    return")
    exec("\n".join([f"def __init__({', '.join(parameters)}):", *lines]), namespace)  # noqa: S102 - names of fields, as ``dataclasses`` does
    made = namespace["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _values(names: Sequence[str]) -> Values:
    if len(names) > 1:
        return attrgetter(*names)

    def values(one: Any) -> tuple[Any, ...]:
        return tuple([getattr(one, name) for name in names])

    return values


def _is_hashed(one: "Field[Any]") -> bool:
    return one.compare if one.hash is None else one.hash


def _repr(names: Sequence[str]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

    return __repr__


def _eq(values: Values) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hash(values: Values) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __hash__


def _refuse_assignment(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    """For copies and pickles, which would assign."""
    return [getattr(self, one.name) for one in fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
