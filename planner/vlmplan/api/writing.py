"""Files of a plan, for a program."""

from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from vlmplan.api.kinds import checked
from vlmplan.api.options import File
from vlmplan.emit import write_files
from vlmplan.errors import InputError
from vlmplan.files import write_atomically
from vlmplan.json_reader import parse_json_object
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


@contextmanager
def _says_force() -> Generator[None]:
    """A refusal to overwrite names the argument."""
    try:
        yield
    except InputError as error:
        error.args = (str(error).replace("--force", "force=True"),)
        raise
