"""What is known of one key of a ds_config.json: its kind, its default, what it does and what the planner knows of it.

The tables are in ``zero_keys``, ``run_keys`` and ``section_keys``; ``vlmplan explain`` shows them and ``file`` reads by
them, so that what is said of a key and what is done with it cannot differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from vlmplan.files.json_reader import JsonObject, shown


class Kind(Enum):
    FLAG = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    TEXTS = "a list of texts"
    OBJECT = "an object"
    ANY = "any value"


class Effect(Enum):
    """What a key means for a plan."""

    MODELLED = "memory, time or results follow it"
    NONE = "it changes neither memory nor time of a plan"
    REFUSED = "it matters and is not modelled: only the value that leaves it off is accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key that DeepSpeed 0.19.8 reads. ``path`` is dotted from the top of the file, ``source`` below ``deepspeed/``.

    ``only`` are the values that can be planned, where not all can be. ``planned`` is what the planner sets it to and
    why; empty where it writes nothing. ``takes_null``: null is the same as leaving the key out.
    """

    path: str
    kind: Kind
    default: Any
    effect: Effect
    about: str
    source: str
    planned: str = ""
    least: float = 0
    most: float | None = None
    only: tuple[Any, ...] = ()
    words: tuple[str, ...] = ()
    takes_null: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    def check(self, values: JsonObject) -> Any:
        """The value in its object, whole numbers as int. Raises InputError for another kind or what is not modelled."""
        value = values.raw(self.name)
        if value is None and self.takes_null:
            return None
        value = self._read(values)
        if self.effect is Effect.REFUSED and not (self.only or self.words):
            values.complain(self.name, "vlmplan has no memory model of it; take it out")
        if self.only and not any(
            value == item and isinstance(value, bool) is isinstance(item, bool) for item in self.only
        ):
            self._refuse(values)
        return value

    def _refuse(self, values: JsonObject) -> NoReturn:
        *first, last = (shown(item) for item in self.only)
        accepted = f"{', '.join(first)} or {last}" if first else last
        if self.effect is Effect.REFUSED:
            values.complain(self.name, f"vlmplan has no memory model of it, only of {accepted}")
        values.refuse(self.name, accepted)

    def _read(self, values: JsonObject) -> Any:
        name = self.name
        if self.kind is Kind.FLAG:
            return values.flag(name)
        if self.kind is Kind.COUNT:
            return values.count(name, least=int(self.least))
        if self.kind is Kind.NUMBER:
            value = values.number(name, least=self.least)
            if self.most is not None and value > self.most:
                values.refuse(name, f"at most {self.most:g}")
            return values.raw(name)  # a whole number without a point stays one, also where it is written again
        if self.kind is Kind.TEXT:
            return values.choice(name, self.words) if self.words else values.text(name)
        if self.kind is Kind.TEXTS:
            return list(values.texts(name))
        return values.mapping(name) if self.kind is Kind.OBJECT else values.raw(name)


def table(*groups: Sequence[Key]) -> Mapping[str, Key]:
    """Keys by path."""
    return {key.path: key for group in groups for key in group}
