"""Samples are cut out of a file with their places; lines and lists have a length that is said."""

import os
from pathlib import Path

import pytest

from vlmplan import data_file
from vlmplan.data_file import records_in
from vlmplan.errors import InputError, UnavailableError


def test_line_that_is_too_long_is_named_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_file, "MAX_SAMPLE_BYTES", 2**20)
    path = tmp_path / "data.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "short"}\n' + b"x" * 2**20)
        file.truncate(2**40)
    with pytest.raises(InputError, match=r"data.jsonl:2 has more than 1 MiB"):
        list(records_in(path))


def test_line_as_long_as_is_allowed_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_file, "MAX_SAMPLE_BYTES", 6)
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"12345\n1234\n123456")
    assert [record.content for record in records_in(path)] == [b"12345\n", b"1234\n", b"123456"]
    assert [record.offset for record in records_in(path)] == [0, 6, 11]


def test_list_that_is_too_long_is_sent_to_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_file, "MAX_LIST_BYTES", 2**20)
    path = tmp_path / "data.json"
    path.write_bytes(b"[{}" + b" " * 2**20)
    with pytest.raises(InputError, match=r"data.json is a list of more than .* \(JSONL\)"):
        list(records_in(path))


@pytest.mark.skipif(os.name == "nt", reason="pipes in the file system")
def test_pipe_is_no_data(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match="only regular files are read"):
        list(records_in(tmp_path / "pipe"))
