"""Dataclasses that are quick to define: a command of a tenth of a second defines more than a hundred.

``dataclasses`` compiles six methods of a frozen one when its module is imported, which takes longer than all else in
most modules. Here those of equality, hash, representation and refusal are closures over the fields, and ``__init__`` is
compiled when the first object is made; most classes of a command have none. Behaviour is that of ``dataclasses``,
whose ``fields``, ``replace`` and ``asdict`` work as ever; ``init``, ``repr`` and ``KW_ONLY`` of fields do not, as
nothing here needs them.
"""

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as standard_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, get_origin

PARAMS = "__dataclass_params__"

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, kw_only: bool = False, eq: bool = True):
        """``dataclasses.dataclass`` of a class with slots."""
        if not slots:
            raise TypeError("only classes with slots are quick to define; dataclasses.dataclass makes others")

        def made(cls: type) -> type:
            own = set(cls.__dict__)
            inherits = any(getattr(base, PARAMS).frozen for base in cls.__mro__[1:] if hasattr(base, PARAMS))
            cls = standard_dataclass(
                init=False, repr=False, eq=False, slots=True, kw_only=kw_only, frozen=frozen and inherits
            )(cls)
            getattr(cls, PARAMS).frozen = frozen  # for standard dataclasses that inherit it
            for name, method in _methods(cls, is_frozen=frozen, compares=eq).items():
                if name not in own:
                    setattr(cls, name, method)
            return cls

        return made


def _methods(cls: type[Any], *, is_frozen: bool, compares: bool) -> dict[str, Any]:
    names = [field.name for field in fields(cls)]

    def initialise(self: Any, *args: Any, **values: Any) -> None:
        cls.__init__ = _compiled_init(cls)
        cls.__init__(self, *args, **values)

    def represent(self: Any) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({values})"

    def refuse_value(self: Any, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def refuse_loss(self: Any, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def take_state(self: Any, values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    made: dict[str, Any] = {"__init__": initialise, "__repr__": represent}
    if is_frozen:
        made |= {"__setattr__": refuse_value, "__delattr__": refuse_loss}
        made |= {"__getstate__": state, "__setstate__": take_state}
    if compares:
        made |= _comparisons(cls)
        made |= {} if is_frozen else {"__hash__": None}
    return made


def _comparisons(cls: type[Any]) -> dict[str, Callable[..., Any]]:
    compared = [field for field in fields(cls) if field.compare]
    hashed = [field for field in compared if field.hash is not False]
    own, key = (_values([field.name for field in chosen]) for chosen in (compared, hashed))

    def is_equal(self: Any, other: Any) -> Any:
        return own(self) == own(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(key(self))

    return {"__eq__": is_equal, "__hash__": hash_of}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """What gives the tuple of these attributes."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple([getattr(one, name) for name in names])


def _compiled_init(cls: type[Any]) -> Callable[..., None]:
    """``__init__`` with all fields as parameters, which fills the slots."""
    known: dict[str, Any] = {"MISSING": MISSING}
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    lines: list[str] = []
    for field in fields(cls):
        name, value, parameter = field.name, field.name, field.name
        known[f"fill_{name}"] = getattr(cls, name).__set__
        if field.default is not MISSING:
            known[f"default_{name}"] = field.default
            parameter = f"{name}=default_{name}"
        elif field.default_factory is not MISSING:
            known[f"new_{name}"] = get_origin(field.default_factory) or field.default_factory  # quicker than an alias
            parameter = f"{name}=MISSING"
            value = f"new_{name}() if {name} is MISSING else {name}"
        parameters[field.kw_only is True].append(parameter)
        lines.append(f"    fill_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    star = ["*"] if parameters[True] else []
    head = f"def __init__({', '.join([*parameters[False], *star, *parameters[True]])}):"
    exec("\n".join([head, *(lines or ["    pass"])]), known)  # noqa: S102 (a text of our own, as dataclasses has it)
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"  # which errors of its arguments name
    return made
