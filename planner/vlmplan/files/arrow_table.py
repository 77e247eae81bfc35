"""Tables in Parquet, and in Arrow's own formats as Hugging Face's datasets writes them, read by pyarrow.

Rows are read a few at a time. One that is asked for again is taken out of its part of the file, the row group of
Parquet or the record batch of Arrow, which stays in memory for the next.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from vlmplan.errors import InputError, MissingPackageError
from vlmplan.files.table_rows import Row, row_content

ROWS_AT_ONCE = 64
"""Rows that are in memory together while all are read. A choice: with an image in each they are some dozen MiB."""
NAMES = {
    b"PAR1": "a Parquet file",
    b"ARRO": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
}
"""By how a file begins: https://parquet.apache.org/docs/file-format/, and "IPC Streaming Format" and "IPC File Format"
in https://arrow.apache.org/docs/format/Columnar.html."""


class _Parts(Protocol):
    """A file by its parts, each a table or a batch of rows."""

    num_rows: list[int]

    def part(self, number: int) -> Any: ...

    def batches(self) -> Iterator[Any]: ...


class ArrowTable:
    """The table in ``path``, which begins with ``mark``. Raises MissingPackageError without pyarrow, InputError for a
    file that it cannot read."""

    def __init__(self, path: Path, mark: bytes) -> None:
        self._path, self._kind = path, NAMES[mark]
        try:
            self._mistake = import_module("pyarrow").ArrowException
        except ImportError:
            raise MissingPackageError(
                f"{path} is {self._kind}, which needs pyarrow: pip install 'vlmplan[tables]'"
            ) from None
        with self._named_mistakes():
            self._parts: _Parts = _Parquet(path) if mark == b"PAR1" else _Batches(path, is_stream=mark != b"ARRO")
        self._ends = list(accumulate(self._parts.num_rows))
        self._kept: tuple[int, Any] | None = None

    def rows(self) -> Iterator[Row]:
        number = 0
        with self._named_mistakes():
            for batch in self._parts.batches():
                for values in batch.to_pylist():
                    yield Row(f"{self._path}[{number}]", number, row_content(values))
                    number += 1

    def num_rows(self) -> int:
        return self._ends[-1] if self._ends else 0

    def row_at(self, offset: int) -> bytes:
        number = bisect_right(self._ends, offset)
        if self._kept is None or self._kept[0] != number:
            self._kept = None  # before the next is in memory
            with self._named_mistakes():
                self._kept = number, self._parts.part(number)
        first = self._ends[number - 1] if number else 0
        [values] = self._kept[1].slice(offset - first, 1).to_pylist()
        return row_content(values)

    @contextmanager
    def _named_mistakes(self) -> Generator[None]:
        try:
            yield
        except (self._mistake, OSError) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise InputError(f"{self._path} cannot be read as {self._kind}: {reason}") from None


class _Parquet:
    """Row groups. They are read without threads: the scan forks."""

    def __init__(self, path: Path) -> None:
        self._file: Any = import_module("pyarrow.parquet").ParquetFile(path)
        footer = self._file.metadata
        self.num_rows = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]

    def part(self, number: int) -> Any:
        return self._file.read_row_group(number, use_threads=False)

    def batches(self) -> Iterator[Any]:
        return self._file.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False)


class _Batches:
    """Record batches, mapped into memory."""

    def __init__(self, path: Path, *, is_stream: bool) -> None:
        source, ipc = import_module("pyarrow").memory_map(str(path)), import_module("pyarrow.ipc")
        if is_stream:
            self._all: list[Any] = list(ipc.open_stream(source))
        else:
            reader = ipc.open_file(source)
            self._all = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        self.num_rows = [batch.num_rows for batch in self._all]

    def part(self, number: int) -> Any:
        return self._all[number]

    def batches(self) -> Iterator[Any]:
        for batch in self._all:
            for first in range(0, batch.num_rows, ROWS_AT_ONCE):
                yield batch.slice(first, ROWS_AT_ONCE)
