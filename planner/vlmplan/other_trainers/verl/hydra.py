"""Configurations of many levels as keys with dots (``actor_rollout_ref.rollout.n``), as hydra's overrides write them.

Source: hydra 1.3 ``core/override_parser/``, omegaconf 2.3 ``grammar_visitor.py``: ``+key=value`` adds a key, ``++key``
adds or changes one, ``~key`` takes one away; ``${key}`` and ``${oc.select:key,default}`` refer to another.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import shown
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.shell_options import ARGUMENTS
from vlmplan.other_trainers.shell_variables import UNKNOWN, written

OF_DEFAULT_FILE: Final = frozenset(
    (
        *("--config-path=config", "--config-path=./config"),
        *("--config-name=ppo_trainer", "--config-name=ppo_trainer.yaml"),
    )
)
"""Hydra's own options, which name the file of defaults that is read anyway."""
MISSING: Final = "???"
REFERENCE = re.compile(r"\$\{(?:oc\.select:\s*)?([\w.]+)\s*(?:,\s*([^{}$]*?)\s*)?\}")
MAX_REFERENCES = 8
"""From one key to the next. A choice: verl's own defaults have three."""


def overrides_of(words: Iterable[str], *, source: str) -> dict[str, Any]:
    """The values of ``key=value``. Raises InputError for other words."""
    values: dict[str, Any] = {}
    for word in words:
        text = written(word)
        if ARGUMENTS.fullmatch(text):
            continue
        if word in OF_DEFAULT_FILE:
            continue
        if word.startswith("--config-name") and "megatron" in word:
            raise InputError(f"{source}: {shown(text)} trains with Megatron, which is not planned; FSDP is")
        key, equals, value = word.lstrip("+").partition("=")
        if word.startswith("~") and UNKNOWN not in word:
            values[key.lstrip("~")] = None
        elif word.startswith("-") or not equals or UNKNOWN in key:
            raise InputError(f"{source}: {shown(text)} is not read; overrides are key=value")
        else:
            values[key] = Unwritten(text.partition("=")[2]) if UNKNOWN in value else _unquoted(value)
    return values


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by keys with dots, later ones over earlier ones, without what refers to a key that is not there.

    >>> flattened({"a": {"b": 1, "c": "${a.b}"}, "a.b": "2", "d": "${oc.select:e,5}", "f": "${g}"})
    {'a.b': '2', 'a.c': '2', 'd': '5'}
    """
    flat: dict[str, Any] = {}
    _flatten("", values, flat)
    resolved = {key: _resolved(value, flat) for key, value in flat.items()}
    return {key: value for key, value in resolved.items() if value not in (MISSING, _Nothing)}


class _Nothing:
    """In place of the value of a reference to nothing."""


def _flatten(prefix: str, values: Mapping[str, Any], into: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            _flatten(f"{prefix}{key}.", cast(Mapping[str, Any], value), into)
        else:
            into[prefix + str(key)] = value


def _resolved(value: Any, flat: Mapping[str, Any]) -> Any:
    for _ in range(MAX_REFERENCES):
        found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            break
        value = flat.get(found[1], found[2] if found[2] is not None else _Nothing)
    is_open = isinstance(value, str) and not isinstance(value, Unwritten) and value.startswith("${")
    return _Nothing if is_open else value
