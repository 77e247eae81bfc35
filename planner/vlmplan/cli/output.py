"""What a command writes: its document as JSON, and files where the user wants them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import click

from vlmplan.commands.document import document_text
from vlmplan.commands.waiting import Waiting
from vlmplan.notes import listed


def print_document(document: Mapping[str, Any]) -> None:
    """Print what --json gives."""
    click.echo(document_text(document))


def waiting_at(work: str, *, as_json: bool) -> Waiting:
    """What says on a terminal that ``work`` goes on. Who asks for JSON sees nothing else."""

    def shown() -> AbstractContextManager[None]:
        from vlmplan.render.progress import waiting

        return waiting(work)

    return nullcontext if as_json else shown


def write_report(path: Path | None, text: Callable[[], str], *, force: bool) -> list[str]:
    """Write the report where the user wants one; what to say of that."""
    if path is None:
        return []
    from vlmplan.files import write_atomically

    write_atomically(path, text(), force=force)
    return [f"written: {path}"]


def refuse_files(files: Mapping[str, Path | None], *, force: bool) -> None:
    """Raise an error where a file, by the option that names it, would be overwritten or written twice, or cannot be
    written at all: before the answer is made that it is to hold."""
    from vlmplan.errors import InputError
    from vlmplan.files import refuse_existing, refuse_unwritable

    paths = [path for path in files.values() if path is not None]
    refuse_existing(paths, force=force)
    if len({path.absolute() for path in paths}) < len(paths):
        *first, last = files
        raise InputError(f"{', '.join(first)} and {last} need a file each; two of them name the same one")
    for path in paths:
        refuse_unwritable(path)


def refuse_idle_force(files: Mapping[str, Path | None], *, force: bool) -> None:
    """Raise UsageError for ``force`` where none of the files is wanted that it overwrites."""
    if force and all(path is None for path in files.values()):
        raise click.UsageError(f"--force goes with {listed(list(files), 'or')}, whose file it overwrites")
