"""A recipe read back from the JSON that ``Recipe.as_json`` writes."""

from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from enum import Enum
from typing import Any

from vlmplan.files.json_reader import JsonObject
from vlmplan.recipe.choices import enum_value
from vlmplan.recipe.evaluation import evaluation_from_json
from vlmplan.recipe.recipe import PLAIN, Recipe
from vlmplan.recipe.settings import option_name
from vlmplan.recipe.task_json import task_from_json
from vlmplan.recipe.zero import ZeroSettings

_OPEN_FIELDS: Mapping[str, Callable[[JsonObject], Callable[[str], Any]]] = {
    "nvme_path": lambda section: section.text,
    "lora_exclude": lambda section: section.text,
    "lora_alpha": lambda section: section.count,
    "dp_shard_size": lambda section: section.count,
    "loraplus_lr_ratio": lambda section: section.number,
}
"""How fields are read whose default is None."""


def recipe_from_json(values: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """The inverse of ``Recipe.as_json``. Raises InputError for unknown keys and values; ``source`` names them."""
    section = JsonObject(values, source=source)
    section.close(field.name for field in fields(Recipe))
    arguments = {field.name: _field_value(section, field) for field in fields(Recipe) if field.name in section}
    return Recipe(**arguments)


def _field_value(section: JsonObject, field: Field[Any]) -> Any:
    """The value of one field, of the kind that its default has."""
    name, default = field.name, field.default
    if name == "zero_stage":
        return None if section.raw(name) == PLAIN else section.count(name)
    if name == "evaluation":
        return section.maybe(name, lambda key: evaluation_from_json(section.object(key)))
    if name == "task":
        return section.maybe(name, lambda key: task_from_json(section.object(key)))
    if default is None:
        return section.maybe(name, _OPEN_FIELDS[name](section))
    if isinstance(default, ZeroSettings):
        sizes = section.object(name)
        sizes.close(item.name for item in fields(ZeroSettings))
        return ZeroSettings(
            **{item.name: _field_value(sizes, item) for item in fields(ZeroSettings) if item.name in sizes}
        )
    if isinstance(default, Enum):
        return enum_value(type(default), section.raw(name), option_name(name))
    readers = {bool: section.flag, int: section.count, float: section.number, str: section.text}
    return readers[type(default)](name)
