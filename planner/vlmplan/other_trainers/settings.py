"""The keys of another trainer's configuration: read by kind, leniently as its own parser does, and accounted for.

``HfArgumentParser`` takes ``1e-4``, ``"true"`` and ``yes`` for what they mean, and words of a command line are all
text. A value that is null or missing is the trainer's default. Whatever nobody asked for is refused by its name in
``close``. A trainer that calls keys of ``TrainingArguments`` otherwise, or makes values of others, says so once: then
the same code reads them, and mistakes are told in the trainer's words.
"""

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, cast

from vlmplan.deepspeed_config.mistakes import Mistakes
from vlmplan.errors import nearest
from vlmplan.files.json_reader import JsonDict, parse_json_object, shown, unknown_key
from vlmplan.other_trainers.record import Setting, Unwritten
from vlmplan.units import MAX_COUNT

YES = frozenset(("true", "yes", "y", "t", "on", "1"))
NO = frozenset(("false", "no", "n", "f", "off", "0"))
NOTHING = frozenset(("none", "null", ""))
SHOWN_CHARACTERS = 60
MAX_NUMBER = 1e18
MODEL_KEYS = frozenset("model_name_or_path model model_id model_id_or_path base_model model_name".split())
"""Keys of the model, which ``--model`` names in their place."""
LEAST_LIKENESS = 0.9
"""Of a key with a slip of the pen to the known one: one letter of ten. A choice."""
OwnKeys = tuple[frozenset[str], frozenset[str]]
"""Keys that the user says to be his own, and those of a program beside its trainer's."""


class Settings:
    """The values of one configuration. What is wrong is kept, and raised together by ``close``.

    ``names``: what the trainer calls a key that is asked for; empty for one that it does not have.
    """

    def __init__(
        self, values: Mapping[str, Any], *, source: str, trainer: str, names: Callable[[str], str] = str
    ) -> None:
        self.source, self.trainer, self._own = source, trainer, names
        self.notes: list[str] = []
        self.of_script: Callable[[list[str]], str] | None = None
        """The sentence on keys that are a script's own, where one may have some beside the trainer's."""
        self.own_keys: frozenset[str] = frozenset()
        self.keys_of_program: frozenset[str] = frozenset()
        """Keys that the user says to change neither bytes nor seconds, as far as the trainer does not have them."""
        self.of_dropped: Callable[[list[str]], str] | None = None
        """The note on keys that the trainer does not have and drops without a word."""
        self._values = {key: value for key, value in values.items() if not _is_nothing(value)}
        self._nulls = {key for key in values if key not in self._values}
        self._mistakes = Mistakes(source)
        self._said: dict[str, Setting] = {}
        self._defaults: dict[str, Setting] = {}
        self._idle: set[str] = set()
        self._known: set[str] = set()
        self._unwritten: set[str] = set()
        self._made: dict[str, Any] = {}

    def __contains__(self, key: str) -> bool:
        return self._own(key) in self._values or self._own(key) in self._made

    @property
    def keys(self) -> tuple[str, ...]:
        """Those of the file that have a value, in its order."""
        return tuple(self._values)

    def is_null(self, key: str) -> bool:
        """Whether it is there and says that there is none."""
        return self._own(key) in self._nulls

    def make(self, key: str, value: Any) -> None:
        """The trainer makes this value of ``key`` by itself, whatever the file says of it."""
        self._made[self._own(key)] = value

    def leave_unwritten(self, keys: Iterable[str]) -> list[str]:
        """Take the trainer's own value of those of ``keys`` whose value only running the program tells; which these
        are."""
        found = [key for key in map(self._own, keys) if isinstance(self._values.get(key), Unwritten)]
        self._made |= dict.fromkeys(found)
        self.ignore(found)
        return found

    # -- values by kind ------------------------------------------------------------------------------------------

    def raw(self, key: str) -> Any:
        """The value as it stands, or as the trainer makes it, None where there is none; it counts as said."""
        key = self._own(key)
        self._known.add(key)
        value = self._values.get(key)
        if isinstance(value, Unwritten) and key not in self._made:
            self._refuse_unwritten(key, value)
            return None
        if value is not None and not isinstance(value, Unwritten):
            self._idle.discard(key)
            self._said[key] = Setting(key, shown(value, SHOWN_CHARACTERS) if not isinstance(value, str) else value)
        return self._made.get(key, value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        if value is None:
            self._taken(key, default)
            return default
        text = str(value).casefold()
        if text in YES or text in NO:
            return text in YES
        self._refuse(key, "true or false")
        return default

    def maybe_flag(self, key: str) -> bool | None:
        """True, false, or None where nothing is said."""
        self._known.add(self._own(key))
        return self.flag(key, False) if key in self else None

    def count(self, key: str, default: int, *, least: int = 0) -> int:
        value = self.number(key, float(default), least=float(least), most=MAX_COUNT)
        if value != int(value):
            self._refuse(key, f"a whole number of {least} or more")
            return default
        if key not in self:
            self._taken(key, default)
        return int(value)

    def maybe_count(self, key: str, *, least: int = 0) -> int | None:
        self._known.add(self._own(key))
        return self.count(key, least, least=least) if key in self else None

    def number(self, key: str, default: float, *, least: float = 0.0, most: float = MAX_NUMBER) -> float:
        value = self.raw(key)
        if value is None:
            self._taken(key, default)
            return default
        number = None if isinstance(value, bool) else _number(value)
        if number is None or not least <= number <= most:
            is_large = number is not None and number > most
            self._refuse(key, f"a number of at most {int(most):,}" if is_large else f"a number of {least:g} or more")
            return default
        return number

    def text(self, key: str, default: str) -> str:
        value = self.raw(key)
        if value is None:
            if default:
                self._taken(key, default)
            return default
        if isinstance(value, (list, dict)):
            self._refuse(key, "text")
            return default
        return str(value)

    def names(self, key: str, default: str = "") -> list[str]:
        """A list, or text with commas or spaces between its parts."""
        value = self.raw(key)
        if value is None:
            if default:
                self._taken(key, default)
            value = default
        if isinstance(value, dict):
            self._refuse(key, "a list of names, or text with commas between them")
            return []
        parts = cast(list[Any], value) if isinstance(value, list) else str(value).replace(",", " ").split()
        return [str(part) for part in parts]

    def table(self, key: str) -> JsonDict:
        """An object, or JSON of one as text; empty where nothing is said."""
        value = self.raw(key)
        if value is None or value == [] or value == {}:
            return {}
        if isinstance(value, str):
            with self._mistakes.kept():
                return parse_json_object(value, source=f"{self.source}: {key}")
            return {}
        if not isinstance(value, dict):
            self._refuse(key, "an object {...}")
            return {}
        return cast(JsonDict, value)

    def section(self, key: str) -> "Settings":
        """The values of an object as settings of their own, which are called ``key.name`` where something is wrong with
        them. Mistakes, notes and defaults are told with these; ``refuse_unknown`` accounts for its keys."""
        values = {f"{key}.{name}": value for name, value in self.table(key).items()}
        found = Settings(values, source=self.source, trainer=self.trainer, names=lambda name: f"{key}.{name}")
        found.notes, found._mistakes, found._defaults = self.notes, self._mistakes, self._defaults
        return found

    # -- what has no effect, and yet has to be of a kind ---------------------------------------------------------

    def check_number(
        self,
        key: str,
        least: float = -math.inf,
        most: float = math.inf,
        *,
        below: float = math.inf,
        is_whole: bool = False,
    ) -> None:
        """Refuse a value that is no number within limits; it does not count as said."""
        value = self._written(key)
        number = None if isinstance(value, bool) else _number(value)
        fits = number is not None and least <= number <= most and (number < below or below == math.inf)
        if value is None or (fits and not (is_whole and number is not None and number % 1)):
            return
        kind = "a whole number" if is_whole else "a number"
        if below < math.inf:
            self._refuse(key, f"{kind} of {least:g} or more and below {below:g}")
            return
        limits = f" of {least:g} to {most:g}" if most < math.inf else f" of {least:g} or more" if least == 0 else ""
        self._refuse(key, kind + limits)

    def check_flag(self, key: str) -> None:
        value = self._written(key)
        if value is not None and str(value).casefold() not in YES | NO:
            self._refuse(key, "true or false")

    def idle_flag(self, key: str, default: bool) -> bool:
        """What a flag says that changes neither bytes nor seconds; it does not count as said."""
        self.check_flag(key)
        value = self._written(key)
        return default if value is None else str(value).casefold() in YES

    def check_choice(self, key: str, choices: Collection[str]) -> None:
        value = self._written(key)
        if value is not None and str(value) not in choices:
            is_no = value is False and "no" in choices
            why = "; YAML takes no without quotation marks for false" if is_no else ""
            self.refuse(key, f"one of {', '.join(choices)} is needed{why}")

    def _written(self, key: str) -> Any:
        """The value; None too where only running a program makes one."""
        value = self.value(key)
        return None if isinstance(value, Unwritten) else value

    # -- what is planned at some values only ---------------------------------------------------------------------

    def only(self, keys: str, why: str, *allowed: Any) -> None:
        """Refuse each of ``keys`` (names with spaces between) at other values than false, 0 or ``allowed``."""
        fine = {str(one).casefold() for one in allowed}
        for key in keys.split():
            value = self.value(key)
            if isinstance(value, Unwritten):
                self._refuse_unwritten(key, value)
            elif value is not None and not _is_off(value) and str(value).casefold() not in fine:
                self.refuse(key, why)
        self.ignore(keys.split())

    def only_true(self, key: str, why: str) -> None:
        """Refuse ``key``, whose default is true, at false."""
        if not self.flag(key, True):
            self.refuse(key, f"{why}; true is needed")

    def is_on(self, key: str) -> bool:
        """Whether its value is anything but false, 0 or empty."""
        value = self.value(key)
        return value is not None and not _is_off(value) and str(value) != "[]"

    def mentions(self, key: str, text: str) -> bool:
        """Whether ``text`` is in its value, without taking that for read."""
        return text in str(self._values.get(self._own(key), ""))

    def refuse(self, key: str, why: str) -> None:
        """Keep that the value of ``key`` will not do."""
        self._mistakes.add(f"{self._own(key)} is {shown(self._values.get(self._own(key)))}; {why}")

    def refuse_whole(self, sentence: str) -> None:
        self._mistakes.add(sentence)

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep what goes wrong inside, and go on."""
        with self._mistakes.kept():
            yield

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    # -- what has no effect --------------------------------------------------------------------------------------

    def ignore(self, keys: Iterable[str]) -> None:
        """These change neither bytes nor seconds of a step."""
        for key in map(self._own, keys):
            self._known.add(key)
            if key in self._values and key not in self._said:
                self._idle.add(key)

    def ignore_all_of(self, *beginnings: str) -> None:
        """Keys of techniques that another key switches on, by how they begin."""
        self.ignore([key for key in (*self._values, *self._nulls) if key.startswith(beginnings)])

    def close(self, more: Collection[str] = ()) -> None:
        """Raise InputError with everything that is wrong, keys that the trainer does not have among it."""
        self.refuse_unknown(more)
        self._mistakes.report()

    def refuse_unknown(self, more: Collection[str] = ()) -> None:
        """Refuse the keys that nobody has asked for, but for ``more``."""
        known = (self._known | set(more)) - {""}
        unknown = [key for key in (*self._values, *self._nulls) if key not in known]
        unknown = self._without_own(unknown)
        if self.of_script is not None:
            own = [key for key in unknown if not _is_slip(key, known)]
            unknown = [key for key in unknown if key not in own]
            if own:
                self._mistakes.add(self.of_script(own))
        elif self.of_dropped is not None:
            dropped = [key for key in unknown if self._own(key) in ("", key) and not _is_slip(key, known)]
            unknown = [key for key in unknown if key not in dropped]
            self._idle |= set(dropped)
            if dropped:
                self.note(self.of_dropped(dropped))
        for key in unknown:
            with self._mistakes.kept():
                raise unknown_key(self.source, "", key, known)

    def _without_own(self, unknown: list[str]) -> list[str]:
        """Without the keys of a program, and without those that the user says to be his own, which are told."""
        self._idle |= self.keys_of_program.intersection(unknown)
        unknown = [key for key in unknown if key not in self.keys_of_program]
        own = [key for key in unknown if key in self.own_keys]
        self._idle |= set(own)
        if own:
            self.note(f"{', '.join(own)}: left out, as a comment in {self.source} says (vlmplan: ignore)")
        return [key for key in unknown if key not in own]

    @property
    def said(self) -> tuple[Setting, ...]:
        """The keys that mean something, in the order of the file."""
        return tuple(self._said[key] for key in self._values if key in self._said)

    @property
    def defaults(self) -> tuple[Setting, ...]:
        return tuple(self._defaults.values())

    @property
    def idle(self) -> tuple[str, ...]:
        """The keys without effect on memory or time, in the order of the file."""
        return tuple(key for key in self._values if key in self._idle)

    def value(self, key: str) -> Any:
        """The value as ``raw`` has it; it does not count as said."""
        own = self._own(key)
        return self._made.get(own, self._values.get(own))

    def _refuse_unwritten(self, key: str, text: Unwritten) -> None:
        advice = ", or name the model with --model" if key in MODEL_KEYS else ""
        advice += "" if self._unwritten else getattr(text, "advice", "")
        sentence = f"{key} is {text}, which only running the program tells; write its value there{advice}"
        if sentence not in self._unwritten:
            self._unwritten.add(sentence)
            self._mistakes.add(sentence)

    def _refuse(self, key: str, needed: str) -> None:
        self.refuse(key, f"{needed} is needed")

    def _taken(self, key: str, default: object) -> None:
        key = self._own(key)
        if not key:
            return
        text = (
            str(default).lower()
            if isinstance(default, bool)
            else f"{default:g}"
            if isinstance(default, float)
            else default
        )
        self._defaults[key] = Setting(key, str(text))


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().casefold() in NOTHING)


def _is_off(value: object) -> bool:
    if isinstance(value, (list, dict)):
        return not value
    return value is False or str(value).casefold() in NO | {"0.0"}


def _is_slip(key: str, known: Collection[str]) -> bool:
    """Whether a key is a known one with a slip of the pen, rather than another.

    >>> _is_slip("per_device_train_batchsize", ["per_device_train_batch_size"]), _is_slip("lora_rank", ["local_rank"])
    (True, False)
    """
    from difflib import SequenceMatcher

    return any(SequenceMatcher(None, key, near).ratio() >= LEAST_LIKENESS for near in nearest(key, known))


def _number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if number == number else None
