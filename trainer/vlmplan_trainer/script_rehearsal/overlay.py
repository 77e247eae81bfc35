"""Files of a script as it would find them: what it writes lies below a temporary folder, and is there under its own
name for all that reads it; what it removes is gone for the script alone.

Every function of ``os`` that takes a path looks into that folder first. Locks are opened with ``os.open``, their
folders are asked of with ``os.statvfs``, and data sets are renamed when they are whole: all find what was made before.
"""

import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from vlmplan_trainer.rehearse.replaced import replaced

READING = ("stat", "lstat", "statvfs", "access", "readlink", "chdir", "listxattr", "getxattr")
CHANGING = ("chmod", "chown", "utime", "truncate", "setxattr")
MAKING = ("mkfifo", "mknod")
REMOVING = ("remove", "unlink", "rmdir")
MAPPED_BY_ARROW = ("memory_map", "OSFile", "input_stream")
"""Of pyarrow: its own C++ opens the files of data sets."""
WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SUPPORTS = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")
FOLDERS_OF_DESCRIPTORS = ("dir_fd", "src_dir_fd", "dst_dir_fd")


class Overlay:
    """The places of a script's files: below ``folder`` by their whole path once they are written, else as named.

    ``say`` gets a sentence about the first file that is written, and about the first that is removed.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._written = os.path.join(os.path.realpath(folder), "written")
        self._own = (f"{folder}{os.sep}", f"{os.path.realpath(folder)}{os.sep}", "/dev/", "/proc/", "/sys/")
        self._removed: set[str] = set()
        self._told: set[str] = set()
        self._exists: Callable[[str], bool] = os.path.lexists
        self._lstat, self._make, self._open = os.lstat, os.mkdir, io.open

    def seen(self, path: Any) -> Any:
        """The place at which ``path`` is read: a place where nothing is for what was removed."""
        whole = self._whole(path)
        if whole is None:
            return path
        place = self._place(whole)
        return place if self._is_there(place) or self._is_removed(whole) else path

    def place(self, path: Any, *, keeps_content: bool = False) -> Any:
        """The place at which ``path`` is written. The folders around it are made where the script finds them; with
        ``keeps_content`` a file that is there is copied."""
        whole = self._whole(path)
        if whole is None:
            return path
        self._tell("files that it writes are in a temporary folder that is gone now", path)
        place, around = self._place(whole), os.path.dirname(whole)
        if os.path.isdir(self.seen(around)):
            self._make_folders(os.path.dirname(place))
        if keeps_content and not self._is_there(place) and not self._is_removed(whole) and os.path.isfile(whole):
            with self._open(whole, "rb") as source, self._open(place, "wb") as target:
                shutil.copyfileobj(source, target)
        return place

    def remove(self, path: Any) -> Any:
        """The place at which ``path`` is removed; None where it is only gone for the script."""
        whole = self._whole(path)
        if whole is None:
            return path
        place = self._place(whole)
        if self._is_there(whole) and not self._is_removed(whole):
            self._tell("files that it removes are there still", path)
            self._removed.add(whole)
            return place if self._is_there(place) else None
        return place

    def both(self, path: Any) -> tuple[Any, ...]:
        """The places of a folder's entries: what was written first."""
        whole = self._whole(path)
        if whole is None:
            return (path,)
        place = self._place(whole)
        if not self._is_there(place) or self._is_removed(whole):
            return (self.seen(path),)
        return (place, path) if os.path.isdir(whole) and self._is_there(whole) else (place,)

    def hides(self, folder: Any, name: str) -> bool:
        """Whether ``name`` of the folder as it is was removed."""
        return os.path.join(os.path.abspath(os.fsdecode(folder)), name) in self._removed

    def _tell(self, sentence: str, path: Any) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._say(f"{sentence} (the first: {os.fsdecode(path)})")

    def _whole(self, path: Any) -> str | None:
        """The whole path; None for descriptors, devices, and what lies in the temporary folder."""
        if isinstance(path, int) or path is None:
            return None
        whole = os.path.abspath(os.fsdecode(path))
        return None if whole.startswith(self._own) or f"{whole}{os.sep}" in self._own else whole

    def _place(self, whole: str) -> str:
        return self._written + whole

    def _is_there(self, path: str) -> bool:
        try:
            self._lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def _is_removed(self, whole: str) -> bool:
        return any(whole == one or whole.startswith(f"{one}{os.sep}") for one in self._removed)

    def _make_folders(self, place: str) -> None:
        if not self._is_there(place):
            self._make_folders(os.path.dirname(place))
            self._make(place)


class Entries:
    """What ``os.scandir`` returns: the entries of several places, each name once."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> "Entries":
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "Entries":
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def close(self) -> None:
        pass


@contextmanager
def files_elsewhere(overlay: Overlay) -> Iterator[None]:
    """Within, ``open``, ``os`` and ``shutil.rmtree`` read and write through ``overlay``."""
    opened = _opened(overlay, io.open)
    with ExitStack() as stack:
        for owner in (sys.modules["builtins"], io):
            stack.enter_context(replaced(owner, "open", opened))
        for name, value in _answers(overlay).items():
            _let_be_supported(getattr(os, name), value)
            stack.enter_context(replaced(os, name, value))
        stack.enter_context(replaced(shutil, "rmtree", _removed_tree(overlay, shutil.rmtree)))
        for owner, name in _arrow_functions():
            stack.enter_context(replaced(owner, name, _by_first(getattr(owner, name), overlay.seen)))
        yield


def _answers(overlay: Overlay) -> dict[str, Callable[..., Any]]:
    """Functions of ``os`` by name, where this system has them."""
    kept: Callable[[Any], Any] = lambda path: overlay.place(path, keeps_content=True)  # noqa: E731
    found: dict[str, Callable[..., Any]] = {}
    for names, where in ((READING, overlay.seen), (CHANGING, kept), (MAKING, overlay.place)):
        found |= {name: _by_first(getattr(os, name), where) for name in names if hasattr(os, name)}
    found |= {name: _removed(overlay, getattr(os, name)) for name in REMOVING}
    found |= {name: _moved(overlay, getattr(os, name)) for name in ("rename", "replace")}
    found |= {name: _linked(overlay, getattr(os, name)) for name in ("symlink", "link")}
    return found | {
        "open": _opened_by_flags(overlay, os.open),
        "mkdir": _made(overlay, os.mkdir),
        "scandir": _scanned(overlay, os.scandir),
        "listdir": _listed(overlay, os.listdir),
    }


def _let_be_supported(old: Any, new: Any) -> None:
    """Libraries look for a function among those that take descriptors."""
    for name in SUPPORTS:
        found: set[Any] = getattr(os, name, set())
        if old in found:
            found.add(new)


def _is_relative_to_descriptor(kwargs: dict[str, Any]) -> bool:
    return any(kwargs.get(name) is not None for name in FOLDERS_OF_DESCRIPTORS)


def _by_first(call: Any, where: Callable[[Any], Any]) -> Any:
    def told(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        return call(path if _is_relative_to_descriptor(kwargs) else where(path), *args, **kwargs)

    return told


def _opened(overlay: Overlay, open_file: Any) -> Any:
    def told(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set("wax+") & set(mode):
            return open_file(overlay.seen(file), mode, *args, **kwargs)
        if "x" in mode and os.path.lexists(file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), file)
        return open_file(overlay.place(file, keeps_content="w" not in mode), mode, *args, **kwargs)

    return told


def _opened_by_flags(overlay: Overlay, open_file: Any) -> Any:
    def told(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        if _is_relative_to_descriptor(kwargs):
            return open_file(path, flags, *args, **kwargs)
        if not flags & WRITING_FLAGS:
            return open_file(overlay.seen(path), flags, *args, **kwargs)
        if flags & os.O_CREAT and flags & os.O_EXCL and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return open_file(overlay.place(path, keeps_content=not flags & os.O_TRUNC), flags, *args, **kwargs)

    return told


def _made(overlay: Overlay, make_folder: Any) -> Any:
    def told(path: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_relative_to_descriptor(kwargs):
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            path = overlay.place(path)
        make_folder(path, *args, **kwargs)

    return told


def _removed(overlay: Overlay, remove: Any) -> Any:
    def told(path: Any, *args: Any, **kwargs: Any) -> None:
        if _is_relative_to_descriptor(kwargs):
            remove(path, *args, **kwargs)
            return
        if remove.__name__ == "rmdir" and os.path.isdir(path) and os.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        place = overlay.remove(path)
        if place is not None:
            remove(place, *args, **kwargs)

    return told


def _removed_tree(overlay: Overlay, remove: Any) -> Any:
    def told(path: Any, *args: Any, **kwargs: Any) -> None:
        place = path if _is_relative_to_descriptor(kwargs) else overlay.remove(path)
        if place is not None:
            remove(place, *args, **kwargs)

    return told


def _moved(overlay: Overlay, move: Any) -> Any:
    """What was written is moved; a file that is there is copied, and gone for the script."""

    def told(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if _is_relative_to_descriptor(kwargs):
            move(source, target, *args, **kwargs)
            return
        found = overlay.seen(source)
        if found is source and overlay.place(source) is not source and os.path.isfile(source):
            found = overlay.place(source, keeps_content=True)
            overlay.remove(source)
        move(found, overlay.place(target), *args, **kwargs)

    return told


def _linked(overlay: Overlay, link: Any) -> Any:
    def told(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_relative_to_descriptor(kwargs):
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
            source, target = overlay.seen(source), overlay.place(target)
        link(source, target, *args, **kwargs)

    return told


def _scanned(overlay: Overlay, scan: Any) -> Any:
    def told(path: Any = ".") -> Any:
        places = overlay.both(path)
        if len(places) == 1 and places[0] is not path:
            return scan(places[0])
        names: set[Any] = set()
        entries: list[Any] = []
        for place in places:
            with scan(place) as found:
                for entry in found:
                    if entry.name not in names and not (place is path and _hides(overlay, path, entry.name)):
                        names.add(entry.name)
                        entries.append(entry)
        return Entries(entries)

    return told


def _listed(overlay: Overlay, list_names: Any) -> Any:
    def told(path: Any = ".") -> list[Any]:
        names: dict[Any, None] = {}
        for place in overlay.both(path):
            found = list_names(place)
            names.update(dict.fromkeys(one for one in found if not (place is path and _hides(overlay, path, one))))
        return list(names)

    return told


def _hides(overlay: Overlay, folder: Any, name: Any) -> bool:
    return not isinstance(folder, int) and folder is not None and overlay.hides(folder, os.fsdecode(name))


def _arrow_functions() -> Iterator[tuple[Any, str]]:
    """pyarrow is there where the libraries that were imported already read data sets."""
    module = sys.modules.get("pyarrow")
    for name in MAPPED_BY_ARROW if module is not None else ():
        yield module, name
