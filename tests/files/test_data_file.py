"""Samples are cut out of a file with their places; lines and lists have a length that is said."""

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import data_file
from vlmplan.files.data_file import record_content, records_in


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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "data.zip",
            b"PK\x03\x04",
            r"is a ZIP archive; unpack it \(only JSONL and JSON lists may stay packed, by gzip\)",
        ),
        ("data.jsonl.zst", b"\x28\xb5\x2f\xfd$", "is packed by Zstandard; unpack it"),
        ("data.jsonl.xz", lzma.compress(b"{}"), "is packed by xz; unpack it"),
        ("data.jsonl.bz2", bz2.compress(b"{}"), "is packed by bzip2; unpack it"),
        ("shard-0.tar", b"0.json".ljust(257, b"\0") + b"ustar\x0000", "is a tar archive; unpack it"),
        ("data.csv.gz", gzip.compress(b"a,b", mtime=0), "is packed by gzip; unpack it"),
        ("data.gz", gzip.compress(b"PAR1", mtime=0), "is packed by gzip; unpack it"),
        ("data.tar.gz", gzip.compress(b"a", mtime=0), "is packed by gzip; unpack it"),
        ("cut.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-9], "cannot be unpacked: Compressed file ended"),
        ("odd.jsonl.gz", b"\x1f\x8b\x09\0" + bytes(20), "cannot be unpacked: Unknown compression method"),
    ],
)
def test_packed_files_of_other_kinds_are_refused_with_what_to_give(
    name: str, content: bytes, words: str, tmp_path: Path
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} {words}"):
        list(records_in(tmp_path / name))


@pytest.mark.parametrize("text", ['{"a": 1}\n\n{"b": "é"}\n', '[{"a": 1}, {"b": "é"}]'])
def test_what_gzip_has_packed_is_read_as_it_was_before(text: str, tmp_path: Path):
    plain, packed = tmp_path / "data.jsonl", tmp_path / "data.jsonl.gz"
    plain.write_text(text, encoding="utf-8")
    packed.write_bytes(gzip.compress(text.encode()))
    found, expected = list(records_in(packed)), list(records_in(plain))
    assert [(one.offset, one.content) for one in found] == [(one.offset, one.content) for one in expected]
    assert [record_content(packed, one.offset, len(one.content)) for one in found] == [one.content for one in found]


def test_a_list_that_is_too_long_once_it_is_unpacked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data_file, "MAX_LIST_BYTES", 2**10)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"[{}" + b" " * 2**10))
    with pytest.raises(InputError, match=r"a.json.gz is a list of more than"):
        list(records_in(tmp_path / "a.json.gz"))


def test_a_list_that_is_cut_off_is_named_at_the_place(tmp_path: Path):
    (tmp_path / "data.json").write_text('[{"a": "b"}, {"c')
    with pytest.raises(InputError, match=r"data.json\[1\] is not JSON: Unterminated string in column 15$"):
        list(records_in(tmp_path / "data.json"))


@pytest.mark.parametrize("indent", [1, "\t"])
@pytest.mark.parametrize("values", [{"messages": []}, {"train": {"messages": []}}])
def test_an_object_over_several_lines_is_told_once(tmp_path: Path, values: dict, indent: int | str):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(values, indent=indent), encoding="utf-8-sig")
    with pytest.raises(InputError, match=r"data\.json begins with a JSON object over several lines; samples are one"):
        list(records_in(path))
    path.write_text(json.dumps(values) + "\n" + json.dumps([values], indent=1))
    assert next(iter(records_in(path))).content == json.dumps(values).encode() + b"\n"
