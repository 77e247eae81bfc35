"""Each rank of a run holds a lock in the folder for as long as it lives, so that no other run starts beside it.

The lock of ``vlmplan launch`` on run.log is gone with it, also where it was killed and its ranks are still ending: they
hold GPU memory, and write. ``ranks.lock`` has a row for each rank, with its process and host; the rank holds a lock of
POSIX on its row (man 2 fcntl), which the system takes back when the process ends, whatever it ends of. A file system
without locks keeps nobody out.
"""

import errno
import os
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from vlmplan.errors import InputError, UnavailableError

LOCK_FILE = "ranks.lock"
ROW_BYTES = 64
"""Of a rank in it: process and host. A choice."""
WAIT_SECONDS = 60.0
"""How long to wait for ranks that are still ending; DeepSpeed's launcher gives them 30. A choice."""
POLL_SECONDS = 0.2
"""Between two looks at it. A choice."""
HELD = (errno.EACCES, errno.EAGAIN)


@contextmanager
def rank_lock(folder: Path, rank: int) -> Generator[None]:
    """Within, no other process is this rank of a run in ``folder``. Raises InputError where one is."""
    import fcntl

    descriptor = _opened(folder)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, ROW_BYTES, rank * ROW_BYTES)
        except OSError as error:
            if error.errno in HELD:
                raise InputError(_still_going_on(folder, [_row(descriptor, rank)])) from None
        row = f"{os.getpid()} {socket.gethostname()}"[:ROW_BYTES].ljust(ROW_BYTES)
        with suppress(OSError):  # a full disk: the lock itself is what counts
            os.pwrite(descriptor, row.encode("ascii", "replace"), rank * ROW_BYTES)
        yield
    finally:
        os.close(descriptor)


def wait_for_old_ranks(folder: Path, say: Callable[[str], None]) -> None:
    """Wait until no rank of an earlier start lives, and ``say`` so where one does. Raises InputError where that takes
    long."""
    end, is_said = time.monotonic() + WAIT_SECONDS, False
    while ranks := _living(folder):
        if time.monotonic() > end:
            raise InputError(_still_going_on(folder, ranks))
        if not is_said:
            say(f"{_still_going_on(folder, ranks)}; waiting for it to end")
            is_said = True
        time.sleep(POLL_SECONDS)


def _still_going_on(folder: Path, ranks: list[str]) -> str:
    return f"a rank of an earlier start still runs in {folder} ({', '.join(ranks)})"


def _living(folder: Path) -> list[str]:
    """The ranks whose rows are locked."""
    import fcntl

    if not os.path.lexists(folder / LOCK_FILE):
        return []
    descriptor = _opened(folder)
    try:
        found: list[str] = []
        for rank in range(os.fstat(descriptor).st_size // ROW_BYTES):
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, ROW_BYTES, rank * ROW_BYTES)
            except OSError as error:
                found += [_row(descriptor, rank)] if error.errno in HELD else []
        return found
    finally:
        os.close(descriptor)  # with which its own locks go


def _row(descriptor: int, rank: int) -> str:
    pid, _, host = os.pread(descriptor, ROW_BYTES, rank * ROW_BYTES).decode(errors="replace").strip().partition(" ")
    return f"rank {rank}, process {pid} on {host}"


def _opened(folder: Path) -> int:
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from None
