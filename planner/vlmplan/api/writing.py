"""Files of a plan, for a program."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from vlmplan.api.kinds import checked
from vlmplan.api.options import File
from vlmplan.commands.fix import write_patch
from vlmplan.emit import write_files
from vlmplan.emit.trainer_files import START_FILE
from vlmplan.emit.write import write_texts
from vlmplan.errors import InputError
from vlmplan.files import write_atomically
from vlmplan.files.json_reader import parse_json_object
from vlmplan.other_trainers import open_trainer_config
from vlmplan.other_trainers.editing.keys import KeyChanges
from vlmplan.other_trainers.editing.patch import patched
from vlmplan.plan import plan_from_json


def save_plan(text: str, path: str | PathLike[str], *, force: bool) -> Path:
    """Write plan.json."""
    target = Path(checked("path", path, File))
    with _says_force():
        write_atomically(target, text, force=force)
    return target


def write_plan_files(text: str, folder: str | PathLike[str], *, force: bool) -> tuple[Path, ...]:
    """Write the files of the plan in ``text``."""
    plan = plan_from_json(parse_json_object(text, source="the plan"), source="the plan")
    with _says_force():
        return tuple(write_files(plan, Path(checked("folder", folder, File)), force=force))


def write_trainer_texts(texts: Mapping[str, str], folder: str | PathLike[str], *, force: bool) -> tuple[Path, ...]:
    """Write the files of another trainer."""
    with _says_force():
        return tuple(write_texts(texts, Path(checked("folder", folder, File)), executable=START_FILE, force=force))


def write_changed_file(
    source: str, seen: str, keys: Mapping[str, Any], path: str | PathLike[str], *, force: bool
) -> tuple[Path, ...]:
    """Write the file ``source`` with ``keys`` changed, and its DeepSpeed file. ``seen`` is what it held when it was
    read.

    Raises InputError where it holds something else now.
    """
    opened = open_trainer_config(Path(source))
    if opened.text != seen:
        raise InputError(f"{source} is another file than the one that was checked; check it again")
    with _says_force():
        patch = patched(opened, KeyChanges(**keys), Path(checked("path", path, File)))
        return tuple(write_patch(patch, Path(source), force=force))


@contextmanager
def _says_force() -> Generator[None]:
    """A refusal to overwrite names the argument."""
    try:
        yield
    except InputError as error:
        error.args = (str(error).replace("--force", "force=True"),)
        raise
