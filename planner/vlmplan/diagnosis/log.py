"""A log as text: bounded, without colours, its lines with the rank that wrote them."""

import re
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import open_regular

MAX_LOG_BYTES = 64 * 2**20
"""Of a longer log the end is read: a run that ran out of memory stops there. Some 500,000 lines. A choice."""
CHUNK_BYTES = 2**20
STANDARD_INPUT = Path("-")
ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,1024}(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Colours, cursor movements and titles (ECMA-48: CSI, OSC and the short ones)."""
RANK = re.compile(
    r"(?:\S{10,40}Z )?(?:\[[a-z_]{1,20}(\d{1,5})\]:|\[\d+,(\d{1,5})\]<std(?:err|out)>:|(\d{1,5}):(?= )"
    r"|\(\w{1,60} (?:rank=(\d{1,5}) )?pid=\d+[^)]{0,80}\)) ?"
)
"""What launchers put before a line: torchrun and torch, mpirun, srun --label, Ray; a container's time before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The text of a log; ``is_cut``: its beginning was not read."""

    source: str
    text: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line without what a launcher put before it. ``writer`` tells writers apart where that tells, ``rank`` is known
    where it is a number of a rank."""

    writer: str
    rank: int | None
    text: str


def read_log(path: Path) -> Log:
    """The end of a file, or of standard input for ``-``.

    Raises UnavailableError if it cannot be read, InputError if there is nothing in it.
    """
    if path == STANDARD_INPUT:
        source = "standard input"
        content, is_cut = _end_of_stream(sys.stdin.buffer)
    else:
        source = str(path)
        content, is_cut = _end_of_file(path)
    if not content.strip():
        raise InputError(f"{source} is empty; a log, a traceback or an out-of-memory message is needed")
    return Log(source=source, text=plain(_decoded(content)), is_cut=is_cut)


def _end_of_file(path: Path) -> tuple[bytes, bool]:
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES), size > MAX_LOG_BYTES
    except FileNotFoundError:
        raise UnavailableError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: characters that no path has
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UnavailableError(f"{path} cannot be read: {reason}") from None


def _end_of_stream(stream: BinaryIO) -> tuple[bytes, bool]:
    chunks: deque[bytes] = deque(maxlen=MAX_LOG_BYTES // CHUNK_BYTES)
    count = 0
    while chunk := stream.read(CHUNK_BYTES):
        chunks.append(chunk)
        count += 1
    return b"".join(chunks), count > len(chunks)


def _decoded(content: bytes) -> str:
    """UTF-16 where it says so, as Windows' shells write it; else UTF-8, whatever is none of it replaced."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    return content.decode("utf-8-sig", errors="replace")


def plain(text: str) -> str:
    r"""``text`` without colours and with ``\n`` for every line break; a progress bar's states are lines.

    >>> plain("\x1b[31merror\x1b[0m\r\n 3%|\r 4%|")
    'error\n 3%|\n 4%|'
    """
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def line_of(text: str) -> Line:
    """A line and who wrote it.

    >>> line_of("[rank3]: RuntimeError").rank, line_of("[rank3]: RuntimeError").text
    (3, 'RuntimeError')
    """
    match = RANK.match(text)
    if match is None:
        return Line(writer="", rank=None, text=text)
    rank = next((int(number) for number in match.groups() if number is not None), None)
    writer = match[0].rpartition("Z ")[2].strip()
    return Line(writer=writer, rank=rank, text=text[match.end() :])
