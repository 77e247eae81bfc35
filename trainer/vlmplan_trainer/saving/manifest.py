"""What a checkpoint is made of: ``complete.json``, with size and SHA-256 of every file, and of itself.

    schema     vlmplan.checkpoint/1
    position   where training is
    run        what must be the same for the run to go on
    num_ranks  which wrote it
    files      {name in the folder: {"bytes": N, "sha256": HEX}}
    sha256     of everything above, as JSON with sorted keys and no blanks

SHA-256, not CRC-32, because it costs little more where it is written, 0.85 instead of 1.2 GB/s on one core (measured:
two cores of a cloud machine with SHA instructions), ranks share the work, and no damage of any kind has the same sum.
It is no signature: who can write files can write their sums (what then holds is ``safe_loading``).

Version 0.1.0 wrote sizes alone, without a schema; such checkpoints are read, and only sizes are checked.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlmplan.errors import InputError, VlmplanError
from vlmplan.files import text_of
from vlmplan.files.json_reader import JsonObject, parse_json_object
from vlmplan.run.training import MANIFEST
from vlmplan.units import counted
from vlmplan_trainer.loop import Position

SCHEMA = "vlmplan.checkpoint/1"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileMark:
    """``sha256`` is None in a checkpoint of version 0.1.0."""

    num_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of ``complete.json``; ``files`` by their names in the folder, with ``/`` between parts."""

    position: Position
    run: Mapping[str, Any]
    num_ranks: int
    files: Mapping[str, FileMark]

    def text(self) -> str:
        content = {
            "schema": SCHEMA,
            "position": {name: getattr(self.position, name) for name in Position.__dataclass_fields__},
            "run": dict(self.run),
            "num_ranks": self.num_ranks,
            "files": {name: {"bytes": mark.num_bytes, "sha256": mark.sha256} for name, mark in self.files.items()},
        }
        return json.dumps(content | {"sha256": _sum_of(content)}, indent=1) + "\n"


def _sum_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_manifest(place: Path) -> Manifest:
    """The manifest of the checkpoint in ``place``. Raises InputError or UnavailableError for one that is not sound."""
    path = place / MANIFEST
    if not _is_regular(path):
        raise InputError(f"{MANIFEST} is missing or no regular file")
    values = parse_json_object(text_of(path, name=MANIFEST), source=MANIFEST)
    top = JsonObject(values, source=MANIFEST)
    if "schema" in top:
        if top.raw("schema") != SCHEMA:
            top.refuse("schema", SCHEMA)
        if top.text("sha256") != _sum_of({name: value for name, value in values.items() if name != "sha256"}):
            raise InputError(f"{MANIFEST} is not as it was written: its SHA-256 is another one")
    position, files = top.object("position"), top.object("files")
    manifest = Manifest(
        position=Position(
            **{name: position.count(name) for name in ("step", "epoch", "num_samples")},
            seconds=position.number("seconds"),
        ),
        run=top.mapping("run"),
        num_ranks=top.count("num_ranks", least=1),
        files={name: _mark(files, name, has_sums="schema" in top) for name in files.values},
    )
    if not manifest.files:
        top.refuse("files", "an object with a file or more")
    if place.name != folder_name(manifest.position.step):
        raise InputError(f"{MANIFEST} is of step {manifest.position.step}")
    return manifest


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def _mark(files: JsonObject, name: str, *, has_sums: bool) -> FileMark:
    if not has_sums:
        return FileMark(files.count(name), None)
    entry = files.object(name)
    return FileMark(entry.count("bytes"), entry.text("sha256"))


# -- the files -------------------------------------------------------------------------------------------------------


def file_names(folder: Path) -> list[str]:
    """The names of everything in ``folder`` and its folders that is no folder, but for the manifest; in order."""
    found = [
        os.path.relpath(os.path.join(place, name), folder)
        for place, folders, names in os.walk(folder)
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(place, name)))]
    ]
    return sorted(Path(name).as_posix() for name in found if name != MANIFEST)


def synced_marks(folder: Path, names: Sequence[str]) -> dict[str, FileMark]:
    """Sizes and sums of these files, which are on the disk when this returns."""
    found: dict[str, FileMark] = {}
    for name in names:
        flush(folder / name)
        found[name] = _mark_of(folder / name)
    return found


def flush(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mark_of(path: Path) -> FileMark:
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
    return FileMark(num_bytes, digest.hexdigest())


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def size_problem(place: Path) -> str | None:
    """What is wrong with a checkpoint as far as its manifest and the sizes of its files show; a part of a sentence."""
    try:
        manifest = read_manifest(place)
        names = file_names(place)
    except (VlmplanError, OSError) as error:
        return str(error)
    for name in names:
        if name not in manifest.files:
            return f"{name} is not among the files that it was written with"
    for name, mark in manifest.files.items():
        if name not in names or not _is_regular(place / name):
            return f"{name} is missing or no regular file"
        found = os.lstat(place / name).st_size
        if found != mark.num_bytes:
            return f"{name} has {counted(found, 'byte')} and was written with {mark.num_bytes:,}"
    return None


def content_problem(place: Path, manifest: Manifest, names: Sequence[str]) -> str | None:
    """What is wrong with the content of these files of a checkpoint whose sizes are right."""
    for name in names:
        expected = manifest.files[name].sha256
        try:
            if expected is not None and _mark_of(place / name).sha256 != expected:
                return f"{name} is not as it was written: its SHA-256 is another one"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None
