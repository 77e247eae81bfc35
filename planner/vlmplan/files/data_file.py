"""Samples in a file: one JSON object in each line (JSONL), one list of objects, or the rows of a table. Each is cut out
with its place.

A list is recognised by its first character, a table by its first bytes or its name. Objects are not looked into here,
but a list has to be JSON up to each.
"""

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, cast

from vlmplan.errors import InputError, UnavailableError
from vlmplan.files.arrow_table import NAMES, ArrowTable
from vlmplan.files.csv_table import DELIMITERS, CsvTable
from vlmplan.files.json_reader import json_mistakes
from vlmplan.files.read_write import open_regular
from vlmplan.files.table_rows import Table

BOM = b"\xef\xbb\xbf"
MAX_SAMPLE_BYTES = 64 * 2**20
"""Longest sample: some dozen images in base64. What is made of it in memory is many times as much."""
MAX_LIST_BYTES = 2 * 2**30
"""Longest list, which is read as a whole; the largest published one (LLaVA's 665k chats) has 1 GiB."""
MOST_OF_A_BEGINNING = 1024
"""Bytes of a line that opens an object and has nothing of it."""
GZIP = b"\x1f\x8b"
"""How files begin that gzip has packed (RFC 1952)."""
PACKED = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x28\xb5\x2f\xfd": "packed by Zstandard",
    b"\xfd7zXZ\0": "packed by xz",
    **{f"BZh{level}1AY&SY".encode(): "packed by bzip2" for level in range(1, 10)},
}
"""How others begin, and what they are: 4.3.7 of PKWARE's APPNOTE, RFC 8878, xz-file-format.txt, bzip2's manual."""
TAR, TAR_AT = b"ustar", 257
"""What a tar archive (WebDataset) has in it, and where (POSIX.1-1988, pax)."""
SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet", ".arrow", *DELIMITERS)
"""Of the names of files that are read."""
TABLES_OPEN = 8
"""Tables that stay open between rows that are asked for one by one, each with a part in memory. A choice."""
BLANKS = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One sample as JSON, but for a table's as its bytes stand in the file. ``source`` names it: ``FILE:LINE`` from 1,
    ``FILE[INDEX]`` from 0; ``offset`` finds it again."""

    source: str
    offset: int
    content: bytes


def records_in(path: Path) -> Iterator[Record]:
    """The samples of a file, in order. Blank lines are none.

    Raises UnavailableError for a file that cannot be read, InputError for a list or a table that is broken, at the
    place, MissingPackageError for a table whose package is not there.
    """
    with _opened(path) as file:
        table = _table(path, file)
        if table is not None:
            for row in table.rows():
                _check_length(row.source, len(row.content))
                yield Record(source=row.source, offset=row.offset, content=row.content)
            return
        is_list = _first_letter(file) == b"["
        file.seek(0)
        yield from _records_of_list(path, _whole(path, file)) if is_list else _records_of_lines(path, file)


def record_content(path: Path, offset: int, num_bytes: int) -> bytes:
    """The content of the record at ``offset``, which has ``num_bytes``. Raises what ``records_in`` raises."""
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        table = _open_table(path, status.st_size, status.st_mtime_ns)
        if table is not None:
            return table.row_at(offset)
        file.seek(offset)
        return file.read(num_bytes)


@contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    """The file, unpacked where it is packed by gzip."""
    try:
        with open_regular(path) as file:
            is_packed = file.read(len(GZIP)) == GZIP
            file.seek(0)
            if not is_packed:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(BinaryIO, unpacked)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be unpacked: {' '.join(str(error).split()).rstrip('.')}") from None
    except FileNotFoundError:
        raise UnavailableError(f"{path} does not exist") from None
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from None


@lru_cache(TABLES_OPEN)
def _open_table(path: Path, _num_bytes: int, _changed_ns: int) -> Table | None:
    """The table in a file that is as large and as old; None for JSON."""
    with _opened(path) as file:
        return _table(path, file)


def _table(path: Path, file: BinaryIO) -> Table | None:
    """The table that a file is; None for what may be JSON, which is read from its begin then. Raises InputError for an
    archive and a table that is packed."""
    begin = file.read(TAR_AT + len(TAR))
    file.seek(0)
    format_name = _name_of_packed(path, begin, is_unpacked=isinstance(file, gzip.GzipFile))
    if format_name is not None:
        raise InputError(f"{path} is {format_name}; unpack it (only JSONL and JSON lists may stay packed, by gzip)")
    begin = begin[:4]
    if begin in NAMES:
        return ArrowTable(path, begin)
    return CsvTable(path, most_bytes=MAX_SAMPLE_BYTES) if path.suffix.casefold() in DELIMITERS else None


def _name_of_packed(path: Path, begin: bytes, *, is_unpacked: bool) -> str | None:
    """What a file is that has to be unpacked, by how it begins, behind gzip where it ``is_unpacked``; else None."""
    inside, is_tar = Path(path.stem).suffix.casefold(), begin.startswith(TAR, TAR_AT)
    if is_unpacked and (begin[:4] in NAMES or is_tar or inside in (*DELIMITERS, ".tar")):
        return "packed by gzip"
    if is_tar:
        return "a tar archive"
    return next((name for first_bytes, name in PACKED.items() if begin.startswith(first_bytes)), None)


def records_of(name: str, content: bytes) -> Iterator[Record]:
    """The samples of a file of this ``name`` that would hold ``content``. Raises InputError as ``records_in`` does."""
    path, file = Path(name), io.BytesIO(content)
    if content[:4] in NAMES or path.suffix.casefold() in DELIMITERS:
        raise InputError(f"{name} is a table, which is read from a file: vlmplan estimate --data {name}")
    is_list = _first_letter(file) == b"["
    file.seek(0)
    yield from _records_of_list(path, content) if is_list else _records_of_lines(path, file)


def num_records_in(path: Path) -> int:
    """How many there are. Raises what ``records_in`` does."""
    with _opened(path) as file:
        table = _table(path, file)
    return sum(1 for _ in records_in(path)) if table is None else table.num_rows()


def _first_letter(file: BinaryIO) -> bytes:
    """The first byte that is no blank and no byte order mark."""
    if file.read(len(BOM)) != BOM:
        file.seek(0)
    while (letter := file.read(1)).isspace():
        pass
    return letter


def _records_of_lines(path: Path, file: BinaryIO) -> Iterator[Record]:
    _refuse_object_over_lines(path, file)
    offset = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_SAMPLE_BYTES + 1), b""), start=1):
        _check_length(f"{path}:{number}", len(line))
        if line.removeprefix(BOM).strip():
            yield Record(source=f"{path}:{number}", offset=offset, content=line)
        offset += len(line)


def _refuse_object_over_lines(path: Path, file: BinaryIO) -> None:
    """Raise InputError where the first line of a file opens an object that the second goes on with."""
    first, second = (file.readline(MOST_OF_A_BEGINNING).strip() for _ in range(2))
    file.seek(0)
    if first.removeprefix(BOM).startswith(b"{") and first.endswith((b"{", b"[")) and second.startswith(b'"'):
        raise InputError(
            f"{path} begins with a JSON object over several lines; samples are one object in each line (JSONL), or one "
            f"list of objects"
        )


def _check_length(source: str, num_bytes: int) -> None:
    if num_bytes > MAX_SAMPLE_BYTES:
        raise InputError(
            f"{source} has more than {MAX_SAMPLE_BYTES // 2**20} MiB; that is the most that a sample may have"
        )


def _whole(path: Path, file: BinaryIO) -> bytes:
    blocks, left = list[bytes](), MAX_LIST_BYTES - os.fstat(file.fileno()).st_size
    if left >= 0:
        left = MAX_LIST_BYTES  # of what is unpacked too
        while left >= 0 and (block := file.read(2**20)):
            blocks.append(block)
            left -= len(block)
    if left < 0:
        raise InputError(
            f"{path} is a list of more than {MAX_LIST_BYTES // 2**30} GiB, which is read as a whole; with an object in "
            f"each line (JSONL) it may have any length"
        )
    return b"".join(blocks)


def _records_of_list(path: Path, content: bytes) -> Iterator[Record]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8") from None
    offset = len(BOM) if content.startswith(BOM) else 0
    del content
    decoder, before, index = json.JSONDecoder(), 0, 0
    at = _after_blanks(text, _after_blanks(text, 0) + 1)
    if text[at : at + 1] == "]":
        _check_end(path, text, at + 1)
        return
    while True:
        end = _end_of_value(decoder, text, at, source=f"{path}[{index}]")
        offset += len(text[before:at].encode())
        item = text[at:end].encode()
        _check_length(f"{path}[{index}]", len(item))
        yield Record(source=f"{path}[{index}]", offset=offset, content=item)
        offset, before, index = offset + len(item), end, index + 1
        at = _after_blanks(text, end)
        if text[at : at + 1] == "]":
            _check_end(path, text, at + 1)
            return
        if text[at : at + 1] != ",":
            raise InputError(f"{path} is not JSON: , or ] is missing after [{index - 1}] in line {_line(text, at)}")
        at = _after_blanks(text, at + 1)


def _end_of_value(decoder: json.JSONDecoder, text: str, at: int, *, source: str) -> int:
    with json_mistakes(source):
        return decoder.raw_decode(text, at)[1]


def _check_end(path: Path, text: str, at: int) -> None:
    at = _after_blanks(text, at)
    if at < len(text):
        raise InputError(f"{path} goes on after its list, in line {_line(text, at)}; one list, or one object a line")


def _after_blanks(text: str, at: int) -> int:
    found = BLANKS.match(text, at)
    assert found is not None
    return found.end()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
