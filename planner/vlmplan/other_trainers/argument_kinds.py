"""Keys of trainers' arguments that decide neither bytes nor seconds, by the kind that their values have to be of.

``data/argument_kinds.json`` has what transformers' and TRL's classes say of their fields
(``tests/tools/argument_kinds.py`` writes it).
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from vlmplan.other_trainers.argument_rules import number_of
from vlmplan.other_trainers.idle_kinds import KEYS
from vlmplan.other_trainers.record import Unwritten
from vlmplan.other_trainers.settings import Settings

OF_TRAINING_ARGUMENTS: Final = "TrainingArguments"
OF_TRL: Final = "TRL"


@cache
def _kinds(group: str) -> Mapping[str, Any]:
    """The kind of each key: a word, or the values that there are."""
    path = Path(__file__).parents[1] / "data" / "argument_kinds.json"
    found = json.loads(path.read_text(encoding="utf-8"))[group]
    words = {name: kind for kind, names in found.items() if kind != "choices" for name in names.split()}
    return words | found["choices"]


def check_kinds(settings: Settings, group: str) -> None:
    """Refuse values of another kind of those keys that nobody has read."""
    kinds = _kinds(group)
    for key in settings.idle:
        kind = None if key in KEYS else kinds.get(key)
        if kind == "bool":
            settings.check_flag(key)
        elif kind in ("int", "float"):
            settings.check_number(key, is_whole=kind == "int")
        elif kind == "floats":
            _check_numbers(settings, key)
        elif kind is not None:
            settings.check_choice(key, kind)


def _check_numbers(settings: Settings, key: str) -> None:
    """A list of numbers, or text of them."""
    value = settings.value(key)
    parts = cast(list[object], value) if isinstance(value, list) else str(value).split()
    if not isinstance(value, Unwritten) and any(number_of(part) is None for part in parts):
        settings.refuse(key, "a list of numbers is needed")
