"""Reading numbers out of config.json and preprocessor_config.json. A leaf of this subpackage.

The rule for what a file lacks: the default of the transformers 5.23 class, except that what the vision tower
fixes (patch size, merge size, the side of towers with learned positions) comes from config.json, because a
processor that disagrees with its tower cannot run.
A key whose value is ``null`` counts as lacking.
"""

from collections.abc import Mapping
from typing import Any, cast

from vlmplan.architecture.config import MAX_INTEGER
from vlmplan.errors import InputError
from vlmplan.files.json_reader import not_allowed, shown

Settings = Mapping[str, Any]


class FileSettings(dict[str, Any]):
    """What a file says, or an object in it, that knows its name: ``config.json: vision_config.``

    Its objects are made once: an image of each size asks for them again.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        super().__init__(values)
        self.place = place
        self.sections: dict[str, FileSettings] = {}


def file_settings(values: Mapping[str, Any], place: str) -> FileSettings:
    """``values`` under their name; as they are if they have one."""
    return values if isinstance(values, FileSettings) else FileSettings(values, place)


def _named(settings: Settings, key: str) -> str:
    return settings.place + key if isinstance(settings, FileSettings) else key


def section(settings: Settings, key: str) -> Settings:
    """The object under ``key``; empty where there is none.

    Raises InputError where the value is not an object.
    """
    if isinstance(settings, FileSettings) and key in settings.sections:
        return settings.sections[key]
    value: object = settings.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise not_allowed("", _named(settings, key), value, "an object {...}")
    made = FileSettings(cast(Settings, value), f"{_named(settings, key)}.")
    if isinstance(settings, FileSettings):
        settings.sections[key] = made
    return made


def count(settings: Settings, key: str, default: int) -> int:
    """The positive whole number under ``key``.

    Raises InputError where the value is anything else.
    """
    value: object = settings.get(key)
    return default if value is None else _positive(value, _named(settings, key))


def number(settings: Settings, key: str, default: float) -> float:
    """The positive number under ``key``.

    Raises InputError where the value is anything else.
    """
    value: object = settings.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_INTEGER:
        raise not_allowed("", _named(settings, key), value, "a number above 0")
    return float(value)


def flag(settings: Settings, key: str, default: bool) -> bool:
    """The truth value under ``key``.

    Raises InputError where the value is not true or false.
    """
    value: object = settings.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise not_allowed("", _named(settings, key), value, "true or false")
    return value


def side(settings: Settings, key: str, default: int) -> int:
    """The side of a square under ``key``, written as ``14``, ``[14, 14]`` or ``{"height": 14, "width": 14}``.

    Raises InputError where the value is not a square of a positive whole number.
    """
    height, width = sides(settings, key, default)
    if height != width:
        raise not_allowed("", _named(settings, key), settings[key], "a square")
    return height


def sides(settings: Settings, key: str, default: int) -> tuple[int, int]:
    """(height, width) under ``key``, written as ``side`` allows or as ``{"shortest_edge": 336}``.

    Raises InputError where the value is none of these.
    """
    value: object = settings.get(key)
    if value is None:
        return default, default
    key = _named(settings, key)
    if isinstance(value, Mapping):
        edges = cast(Settings, value)
        if "shortest_edge" in edges:
            shortest = _positive(edges["shortest_edge"], f"{key}.shortest_edge")
            return shortest, shortest
        return (
            _positive(edges.get("height"), f"{key}.height"),
            _positive(edges.get("width"), f"{key}.width"),
        )
    if isinstance(value, list | tuple):
        pair = cast("list[object] | tuple[object, ...]", value)
        if len(pair) != 2:
            raise not_allowed("", key, pair, "one whole number or [height, width]")
        return _positive(pair[0], key), _positive(pair[1], key)
    length = _positive(value, key)
    return length, length


def cropped_sides(preprocessor: Settings, default: int) -> tuple[int, int]:
    """(height, width) in pixels after resize and center crop."""
    if flag(preprocessor, "do_center_crop", True):
        return sides(preprocessor, "crop_size", default)
    return sides(preprocessor, "size", default)


def edge(settings: Settings, key: str, name: str, default: int) -> int:
    """The positive whole number ``name`` in the object under ``key``; ``default`` where there is no object.

    An object without ``name`` is not completed from the class, as in transformers.
    Raises InputError for that and for a value that is not a positive whole number.
    """
    edges = section(settings, key)
    if edges and edges.get(name) is None:
        raise InputError(f"{_named(settings, key)}.{name} is missing")
    return count(edges, name, default)


def _positive(value: object, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise not_allowed("", key, value, "a whole number of 1 or more")
    if value > MAX_INTEGER:
        raise InputError(f"{key} is {shown(value)}; at most {MAX_INTEGER:,} can be planned")
    return value
