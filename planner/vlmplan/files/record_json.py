"""A frozen record as the JSON that plans and answers keep of it."""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from vlmplan.files.json_reader import JsonDict


def record_json(record: Any) -> JsonDict:
    """The fields of a dataclass: an enumeration as the command line has it, a record as an object of its own."""
    return {field.name: _plain(getattr(record, field.name)) for field in fields(record)}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return record_json(value) if is_dataclass(value) else value
