"""Rows of tables as samples: what a row of columns is as JSON, whatever the table is written as.

A column is a key. Where a row has nothing, its sample has no such key: Arrow gives all rows of a column the same keys.
Bytes become a ``data:`` URI, and so do images and sounds that Hugging Face's datasets keeps as ``{"bytes": ...,
"path": ...}``; where it keeps their path alone, that path.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, cast

IN_FILE = frozenset(("bytes", "path"))
"""The keys that datasets keeps an image, a sound or a video under: ``Image``, ``Audio`` and ``Video`` in
``datasets/features`` (5.2.0)."""


class Row(NamedTuple):
    """One row as the JSON of a sample. ``source`` names it, ``offset`` finds it again: a number or a place in bytes."""

    source: str
    offset: int
    content: bytes


class Table(Protocol):
    """A table that is open. Everything raises InputError, naming the place, for what is broken."""

    def rows(self) -> Iterator[Row]:
        """All rows, in order."""
        ...

    def num_rows(self) -> int:
        """How many there are."""
        ...

    def row_at(self, offset: int) -> bytes:
        """The content of the row that has this ``offset``."""
        ...


def row_content(values: Mapping[str, Any]) -> bytes:
    """The JSON of a row, in UTF-8."""
    return json.dumps(_said(values), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _said(value: Any) -> Any:
    """A value of pyarrow as JSON has it, without what is not there."""
    if isinstance(value, Mapping):
        values = cast("Mapping[str, Any]", value)
        if IN_FILE.issuperset(values) and "path" in values:
            return _said(values.get("bytes") if values.get("bytes") is not None else values["path"])
        return {str(key): said for key, one in values.items() if (said := _said(one)) is not None}
    if isinstance(value, (list, tuple)):
        return [_said(one) for one in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return f"data:;base64,{base64.b64encode(value).decode('ascii')}"
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
