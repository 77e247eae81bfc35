"""Tables of CSV and TSV (RFC 4180): the first line has the names of the columns, each further record is a sample.

A cell is a text. Where a column may hold a list, such as ``messages``, a cell that begins as a JSON list is that list.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vlmplan.errors import InputError
from vlmplan.files.read_write import open_regular
from vlmplan.files.table_rows import Row, row_content

DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""By how the name of the file ends."""
LISTS = frozenset(
    "messages conversations conversation chosen rejected prompt completion history tools images videos audios".split()
)
"""Columns whose cells may be lists."""


class _Record(NamedTuple):
    cells: list[str]
    line: int
    offset: int


class CsvTable:
    """A table of texts, whose cells have at most ``most_bytes``."""

    def __init__(self, path: Path, *, most_bytes: int) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._delimiter = DELIMITERS[path.suffix.casefold()]

    def rows(self) -> Iterator[Row]:
        with open_regular(self._path) as file:
            names: list[str] | None = None
            for record in self._records(file, 0, 1):
                if names is None:
                    names = self._names(record.cells)
                    continue
                source = f"{self._path}:{record.line}"
                yield Row(source, record.offset, row_content(self._values(names, record, source)))

    def num_rows(self) -> int:
        return sum(1 for _ in self.rows())

    def row_at(self, offset: int) -> bytes:
        with open_regular(self._path) as file:
            names = self._names(next(self._records(file, 0, 1)).cells)
            record = next(self._records(file, offset, 2))
        return row_content(self._values(names, record, str(self._path)))

    def _records(self, file: BinaryIO, offset: int, line: int) -> Iterator[_Record]:
        """The records from ``offset`` on, which is in ``line``. Blank lines are none."""
        file.seek(offset)
        end, next_line = offset, line

        def lines() -> Iterator[str]:
            nonlocal end, next_line
            for content in iter(lambda: file.readline(self._most_bytes + 1), b""):
                if len(content) > self._most_bytes:
                    raise InputError(
                        f"{self._path}:{next_line} has more than {self._most_bytes // 2**20} MiB; that is the most "
                        f"that a sample may have"
                    )
                end, next_line = end + len(content), next_line + 1
                yield self._text(content, next_line - 1, is_first=end == len(content))

        # The whole process has one limit, which is never lowered.
        csv.field_size_limit(max(self._most_bytes, csv.field_size_limit()))
        reader = csv.reader(lines(), delimiter=self._delimiter, strict=True)
        while True:
            begin, first_line = end, next_line
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise InputError(f"{self._path}:{first_line} is not CSV: {error}") from None
            if cells is None:
                return
            if cells:
                yield _Record(cells, first_line, begin)

    def _text(self, content: bytes, line: int, *, is_first: bool) -> str:
        try:
            return content.decode("utf-8-sig" if is_first else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{self._path}:{line} is not text in UTF-8") from None

    def _names(self, cells: list[str]) -> list[str]:
        names = [cell.strip() for cell in cells]
        twice = next((name for name in names if names.count(name) > 1 and name), None)
        if twice is not None:
            raise InputError(f"{self._path}:1 names two columns {twice!r}; each column has a name of its own")
        return names

    def _values(self, names: list[str], record: _Record, source: str) -> dict[str, Any]:
        if len(record.cells) != len(names):
            raise InputError(
                f"{source} has {len(record.cells)} cells, and the first line names {len(names)} columns; a text with "
                f"{'commas' if self._delimiter == ',' else 'tabs'} or line ends stands in double quotes"
            )
        return {name: _cell(name, text) for name, text in zip(names, record.cells, strict=True) if name}


def _cell(name: str, text: str) -> Any:
    if name in LISTS and text.lstrip().startswith("["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text
