"""Tables are read row by row, and a row is found again by its place."""

import base64
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow
import pyarrow.parquet
import pytest

from vlmplan.errors import InputError, MissingPackageError
from vlmplan.files import data_file
from vlmplan.files.data_file import num_records_in, record_content, records_in, records_of

ROWS = [
    {"text": "é", "images": [{"bytes": b"\x89PNG", "path": "a.png"}], "parts": {"a": 1}, "when": None},
    {"text": "two", "images": [{"bytes": None, "path": "b.png"}], "parts": {"b": [1.5, float("nan")]}},
    {"text": "three", "when": datetime.date(2026, 1, 2)},
]
SAMPLES = [
    {"text": "é", "images": ["data:;base64," + base64.b64encode(b"\x89PNG").decode()], "parts": {"a": 1}},
    {"text": "two", "images": ["b.png"], "parts": {"b": [1.5, None]}},
    {"text": "three", "when": "2026-01-02"},
]
"""The same as JSON: what is not there has no key, though Arrow gives every row all keys of its column."""


def as_parquet(path: Path, rows: Sequence[dict[str, Any]], rows_in_part: int) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path, row_group_size=rows_in_part)
    return path


def as_stream(path: Path, rows: Sequence[dict[str, Any]], rows_in_part: int) -> Path:
    table = pyarrow.Table.from_pylist(list(rows))
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_in_part)
    return path


def as_arrow_file(path: Path, rows: Sequence[dict[str, Any]], rows_in_part: int) -> Path:
    table = pyarrow.Table.from_pylist(list(rows))
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows_in_part)
    return path


@pytest.mark.parametrize("rows_in_part", [1, 2, 100])
@pytest.mark.parametrize("write", [as_parquet, as_stream, as_arrow_file])
def test_every_row_is_a_sample_and_is_found_again(write: Any, rows_in_part: int, tmp_path: Path):
    path = write(tmp_path / "rows.bin", ROWS, rows_in_part)
    records = list(records_in(path))
    assert [json.loads(record.content) for record in records] == SAMPLES
    assert [record.source for record in records] == [f"{path}[{number}]" for number in range(3)]
    assert num_records_in(path) == 3
    for record in (records[2], records[0], records[1]):
        assert record_content(path, record.offset, len(record.content)) == record.content


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path):
    path = as_parquet(tmp_path / "a.parquet", ROWS[:1], 1)
    first = record_content(path, 0, 0)
    as_parquet(path, [{"text": "another"}] * 50, 1)
    assert json.loads(record_content(path, 0, 0)) == {"text": "another"} != json.loads(first)


def test_a_line_of_json_is_found_again_by_its_bytes(tmp_path: Path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "é"}\n{"text": "b"}\n', encoding="utf-8")
    for record in records_in(path):
        assert record_content(path, record.offset, len(record.content)) == record.content


@pytest.mark.parametrize(("name", "between"), [("a.csv", ","), ("a.TSV", "\t")])
def test_cells_are_texts_under_the_names_of_the_first_line(name: str, between: str, tmp_path: Path):
    path = tmp_path / name
    lines = [["", "instruction", "output"], ["0", '"Say ""hi""\n\nnow"', "é"], [], ["1", "[1]", ""]]
    path.write_text("\r\n".join(between.join(cells) for cells in lines), encoding="utf-8-sig", newline="")
    first, second = records_in(path)
    assert json.loads(first.content) == {"instruction": 'Say "hi"\n\nnow', "output": "é"}
    assert json.loads(second.content) == {"instruction": "[1]", "output": ""}
    assert (first.source, second.source, num_records_in(path)) == (f"{path}:2", f"{path}:6", 2)
    assert [record_content(path, one.offset, 0) for one in (second, first)] == [second.content, first.content]


def test_a_cell_of_messages_is_the_list_that_stands_there(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('messages,output\n"[{""role"": ""user""}]",[1]\n[broken,b\n', encoding="utf-8")
    first, second = (json.loads(record.content) for record in records_in(path))
    assert first == {"messages": [{"role": "user"}], "output": "[1]"}
    assert second == {"messages": "[broken", "output": "b"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2,3\n", r"a.csv:2 has 3 cells, and the first line names 2 columns; .* in double quotes"),
        ('a,b\n1,"2\n', r"a.csv:2 is not CSV: unexpected end of data"),
        ("a,a\n1,2\n", r"a.csv:1 names two columns 'a'"),
        (b"a,b\n\xff,2\n", r"a.csv:2 is not text in UTF-8"),
        ("a\n" + "x" * 100, r"a.csv:2 has more than 0 MiB"),
    ],
)
def test_a_broken_table_is_one_sentence(
    content: str | bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(data_file, "MAX_SAMPLE_BYTES", 64)
    path = tmp_path / "a.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=words):
        list(records_in(path))


@pytest.mark.parametrize("begin", [b"PAR1", b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0"])
def test_a_file_that_only_begins_as_a_table_is_one_sentence(begin: bytes, tmp_path: Path):
    path = tmp_path / "a.parquet"
    path.write_bytes(begin + b"nothing of the kind")
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as an? (Parquet|Arrow) (file|stream): ."):
        list(records_in(path))


def test_a_row_that_is_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_file, "MAX_SAMPLE_BYTES", 2**20)
    path = as_parquet(tmp_path / "a.parquet", [{"text": "short"}, {"text": "x" * 2**20}], 2)
    with pytest.raises(InputError, match=r"a.parquet\[1\] has more than 1 MiB"):
        list(records_in(path))


def test_without_pyarrow_it_is_said_how_to_get_it(tmp_path: Path):
    path = as_parquet(tmp_path / "a.parquet", ROWS, 2)
    with (
        mock.patch("vlmplan.files.arrow_table.import_module", side_effect=ImportError),
        pytest.raises(
            MissingPackageError, match=r"a Parquet file, which needs pyarrow: pip install 'vlmplan\[tables\]'"
        ),
    ):
        list(records_in(path))


@pytest.mark.parametrize(("name", "content"), [("a.csv", b"text\nx\n"), ("a.bin", b"PAR1....")])
def test_a_table_that_is_no_file_is_sent_to_one(name: str, content: bytes):
    with pytest.raises(InputError, match=f"{name} is a table, .*: vlmplan estimate --data {name}"):
        list(records_of(name, content))


@pytest.mark.parametrize("content", [b'{"a": 1}\n{"a": 2}\n', b'[{"a": 1}, {"a": 2}]'])
def test_lines_and_a_list_that_are_no_file_are_read_as_one(content: bytes):
    assert [json.loads(record.content)["a"] for record in records_of("a.json", content)] == [1, 2]
