"""Text files: read with one sentence for what is wrong; written whole or not at all, and over others only if asked."""

import io
import os
from collections.abc import Iterable
from pathlib import Path

from vlmplan.errors import InputError, UnavailableError

EXECUTABLE = 0o777
READABLE = 0o666
NOT_JSON = ", so it is no JSON file"
"""What follows from a file's not being text, where JSON is needed."""
SHIPPED_CATALOG = "gpu_catalog.yaml"
"""The catalog that comes with vlmplan."""


def refuse_existing(paths: Iterable[Path], *, force: bool) -> None:
    """Raise InputError naming the first path that exists, unless ``force``."""
    for path in paths:
        if path.is_dir():
            raise InputError(f"{path} is a folder, so no file can be written there")
        if not force and os.path.lexists(path):
            raise InputError(f"{path} exists already; --force overwrites it")


def shipped_catalog_path(package: Path) -> Path:
    """The catalog file of the installed ``package`` folder: in it, or at the top of a checkout."""
    for folder in (package, package.parents[1]):
        if (folder / SHIPPED_CATALOG).is_file():
            return folder / SHIPPED_CATALOG
    raise UnavailableError(f"{SHIPPED_CATALOG} is missing from this installation; install vlmplan again")


def text_of(path: Path, *, name: str, otherwise: str = "") -> str:
    """What a text file holds. ``name`` is what errors call it, ``otherwise`` what follows from its not being text.

    Raises UnavailableError if the file cannot be read, InputError if it is not in UTF-8.
    """
    text = text_if_there(path, name=name, otherwise=otherwise)
    if text is None:
        raise UnavailableError(f"{name} does not exist")
    return text


def text_if_there(path: Path, *, name: str, otherwise: str = "", most_bytes: int | None = None) -> str | None:
    """``text_of``, or None where there is no such file. Raises InputError for one of more than ``most_bytes`` too."""
    try:
        with path.open("rb") as file:
            content = file.read(-1 if most_bytes is None else most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: characters that no path has
        return None
    except OSError as error:
        raise UnavailableError(f"{name} cannot be read: {error.strerror}") from None
    if most_bytes is not None and len(content) > most_bytes:
        raise InputError(f"{name} has more than {most_bytes // 2**20} MiB{otherwise}")
    try:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig").read()
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
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
        raise UnavailableError(f"{path} cannot be written: {error.strerror}") from None
