"""Files and folders that a configuration names: looked for from here, from its own folder, and from those above it."""

from contextlib import suppress
from pathlib import Path

from vlmplan.errors import InputError

MAX_BYTES = 2**20
"""Of a configuration, or of a file that it names. A choice."""
ADVICE = {"deepspeed": "; give the file with --ds-config"}
"""On a file that is not there, by the key that names it."""


def found_file(name: str, folder: Path | None, source: str, key: str, notes: list[str]) -> Path:
    """The file that a configuration names: from here, from its own ``folder``, or from those above it. Of an absolute
    path that is not on this machine the longest end that is there, which ``notes`` are told.

    Raises InputError where there is none, and where the configuration came without a folder: nothing is opened then.
    """
    if folder is None:
        raise InputError(f"{source}: {key} is {name}, a file that did not come with it" + ADVICE.get(key, ""))
    with suppress(OSError):  # a name that no file can have
        for place in _places(name, folder):
            if place.is_file():
                return place
        for place in _places_of_ends(name, folder):
            if place.is_file():
                notes.append(f"{key} is {name}, which is not on this machine: {place} is taken")
                return place
    raise InputError(
        f"{source}: {key} is {name}, which is no file from here, from the folder of {source} or from those "
        f"above it" + ADVICE.get(key, "")
    )


def found_folder(name: str, folder: Path, source: str, key: str) -> Path:
    """The folder that a configuration names, looked for as ``found_file`` does; InputError where there is none."""
    with suppress(OSError):
        for place in _places(name, folder):
            if place.is_dir():
                return place
    raise InputError(
        f"{source}: {key} is {name}, which is no folder from here, from the folder of {source} or from those above it"
    )


def _places_of_ends(name: str, folder: Path) -> list[Path]:
    """Where an absolute path of another machine may be found: its ends, the longest first."""
    parts = Path(name).parts[1:] if Path(name).is_absolute() else ()
    ends = [Path(*parts[place:]) for place in range(len(parts))]
    return [parent / end for end in ends for parent in (folder, *folder.parents)]


def _places(name: str, folder: Path) -> list[Path]:
    """The paths of ``name`` from here, from a configuration's own folder, and from those above it; none for a name that
    no file can have."""
    with suppress(OSError, RuntimeError):  # RuntimeError: a home that nobody has
        path = Path(name).expanduser()
        return [path] if path.is_absolute() else [path, *(parent / path for parent in (folder, *folder.parents))]
    return []
