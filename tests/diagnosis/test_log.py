"""Logs are read as text, bounded, whatever wrote them."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlmplan.diagnosis import log
from vlmplan.diagnosis.log import line_of, plain, read_log
from vlmplan.errors import InputError, UnavailableError


def test_colours_titles_and_carriage_returns_are_gone():
    text = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07here\x1b[2K\r 3%|\r\n"
    assert plain(text) == "red here\n 3%|\n"


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("[rank7]: Traceback", 7, "Traceback"),
        ("[default3]:  File", 3, " File"),
        ("[1,2]<stderr>: Error", 2, "Error"),
        ("5: Error", 5, "Error"),
        ("2021-12-08T01:25:15.387283459Z [rank1]: x = 1", 1, "x = 1"),
        ("(TrainWorker rank=4 pid=21287, ip=10.0.0.1) x", 4, "x"),
        ("12:30 Error", None, "12:30 Error"),
    ],
)
def test_who_wrote_a_line_is_read_off_what_launchers_put_before_it(line: str, rank: int | None, text: str):
    found = line_of(line)
    assert (found.rank, found.text) == (rank, text)


def test_of_a_long_log_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "MAX_LOG_BYTES", 100)
    monkeypatch.setattr(log, "CHUNK_BYTES", 10)
    path = tmp_path / "train.log"
    path.write_text("a" * 500 + "the end")
    found = read_log(path)
    assert (len(found.text), found.text[-7:], found.is_cut) == (100, "the end", True)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    streamed = read_log(Path("-"))
    assert (streamed.source, streamed.text[-7:], streamed.is_cut) == ("standard input", "the end", True)
    assert len(streamed.text) <= 100


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
def test_what_windows_shells_write_is_read(tmp_path: Path, encoding: str):
    path = tmp_path / "train.log"
    path.write_bytes("CUDA out of memory\r\n 模型".encode(encoding))
    assert read_log(path).text == "CUDA out of memory\n 模型"


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path):
    path = tmp_path / "train.log"
    path.write_bytes(b"\xff\x00\xfe 3%| \x80")
    assert " 3%| " in read_log(path).text


def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path):
    with pytest.raises(UnavailableError, match="does not exist"):
        read_log(tmp_path / "none.log")
    with pytest.raises(UnavailableError, match="cannot be read"):
        read_log(tmp_path)
    (tmp_path / "empty.log").write_text(" \n")
    with pytest.raises(InputError, match=r"is empty; a log, a traceback or an out-of-memory message is needed"):
        read_log(tmp_path / "empty.log")
