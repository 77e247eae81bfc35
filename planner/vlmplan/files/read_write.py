"""Files: read if they are regular and no larger than is said, with one sentence for what is wrong; written whole or not
at all, and over others only if asked.

``open_regular`` is the one place where a file that somebody names is opened: a pipe would wait for a writer for ever, a
device may never end.
"""

import errno
import io
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from vlmplan.errors import InputError, UnavailableError

EXECUTABLE = 0o777
READABLE = 0o666
MAX_TEXT_BYTES = 16 * 2**20
"""Largest text that is read whole: plans, configurations and catalogs have some hundred KiB."""
KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
NOT_JSON = ", so it is no JSON file"
"""What follows from a file's not being text, where JSON is needed."""
BESIDE = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""The names that ``_beside`` gives."""
SHIPPED_CATALOG = "gpu_catalog.yaml"
"""The catalog that comes with vlmplan."""


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Raise InputError naming the first path that exists, unless ``force``."""
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder, so no file can be written there")
        if not force and os.path.lexists(path):
            raise InputError(f"{path} exists already; --force overwrites it")


def refuse_unwritable(path: Path) -> None:
    """Raise UnavailableError where no file can be written at ``path``.

    One is made where ``write_atomically`` would make it, or in the folder above that there is, and taken away again.
    """
    folder = next((parent for parent in path.parents if os.path.lexists(parent)), Path())
    beside = _beside(path) if folder == path.parent else folder / _beside(Path("file"))
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, READABLE))
        beside.unlink()
    except OSError as error:
        raise _unwritable(path, error) from None


def _beside(path: Path) -> Path:
    """A new name each time: what a killed process left may have any process's id, in containers often the same."""
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")


def remove_half_written(folder: Path) -> None:
    """Remove what ``write_atomically`` left in ``folder`` where it was killed; nobody may be writing there."""
    for path in folder.glob(".*.tmp"):
        if BESIDE.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(f"{path} cannot be written: {error.strerror}")


def shipped_catalog_path(package: Path) -> Path:
    """The catalog file of the installed ``package`` folder: in it, or at the top of a checkout."""
    for folder in (package, package.parents[1]):
        if (folder / SHIPPED_CATALOG).is_file():
            return folder / SHIPPED_CATALOG
    raise UnavailableError(f"{SHIPPED_CATALOG} is missing from this installation; install vlmplan again")


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The regular file at ``path``, to read from. Raises OSError for anything else, without waiting for it."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        kind = next((kind for is_kind, kind in KINDS if is_kind(mode)), None)
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {kind}, and only regular files are read", os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content_of(path: Path, *, most_bytes: int = MAX_TEXT_BYTES) -> bytes | None:
    """What a regular file holds; None for more than ``most_bytes``. Raises OSError where it cannot be read."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)
    return content if len(content) <= most_bytes else None


def text_of(
    path: Path,
    *,
    name: str,
    otherwise: str = "",
    most_bytes: int = MAX_TEXT_BYTES,
    keeps_line_ends: bool = False,
) -> str:
    """What a text file holds. ``name`` is what errors call it, ``otherwise`` what follows from its not being text; its
    lines end in ``\\n`` unless ``keeps_line_ends``.

    Raises UnavailableError if the file cannot be read, InputError if it is not in UTF-8 or larger than ``most_bytes``.
    """
    text = text_if_there(path, name=name, otherwise=otherwise, most_bytes=most_bytes, keeps_line_ends=keeps_line_ends)
    if text is None:
        raise UnavailableError(f"{name} does not exist")
    return text


def text_if_there(
    path: Path,
    *,
    name: str,
    otherwise: str = "",
    most_bytes: int = MAX_TEXT_BYTES,
    keeps_line_ends: bool = False,
) -> str | None:
    """``text_of``, or None where there is no such file."""
    try:
        content = content_of(path, most_bytes=most_bytes)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: characters that no path has
        return None
    except OSError as error:
        raise UnavailableError(f"{name} cannot be read: {error.strerror}") from None
    if content is None:
        raise InputError(f"{name} has more than {most_bytes // 2**20} MiB{otherwise}")
    try:
        newline = "" if keeps_line_ends else None
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=newline).read()
    except UnicodeDecodeError:
        raise InputError(f"{name} is not text in UTF-8{otherwise}") from None


def proc_bytes(path: str) -> dict[str, int]:
    """The lines ``NAME: NUMBER kB`` of a file of Linux's /proc, in bytes; empty where there is none."""
    try:
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {name.rstrip(":"): int(number) * 1024 for name, number, _ in words}


def write_atomically(path: Path, content: str | bytes, *, force: bool = False, mode: int = READABLE) -> None:
    """Write ``content`` beside ``path`` and move it there, so that a reader sees the old file or the new one.

    Text is written as UTF-8. ``mode`` is what the umask takes from. Raises InputError if the file exists and ``force``
    is off, UnavailableError if the place cannot be written.
    """
    refuse_existing([path], force=force)
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{path} cannot be written: a name in it is not UTF-8 text") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = _beside(path)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from None
