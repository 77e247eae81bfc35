"""``vlmplan check --fix``: changes of the trainer's own file, and writing the first."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import FILE, Decorator, print_document, today

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.request import Request
    from vlmplan.search.fixes import Fixes

SCHEMA = "vlmplan.check/1"
FIX: tuple[Decorator, ...] = (
    click.option(
        "--fix",
        "fixes",
        is_flag=True,
        help="Show the smallest change of FILE with which it fits, or is faster where it does, as a diff, and others, "
        "each with what it costs.",
    ),
    click.option("--write", "target", type=FILE, metavar="FILE", help="Where --fix writes the changed file."),
    click.option("--force", is_flag=True, help="Write over a file that exists, also FILE itself."),
)


OWNER_WRITES = 0o200


@dataclass(frozen=True, slots=True, kw_only=True)
class FixOptions:
    fixes: bool
    target: Path | None
    force: bool

    def __post_init__(self) -> None:
        """Raises UsageError for what means nothing without another option."""
        if self.target is not None and not self.fixes:
            raise click.UsageError("--write goes with --fix, of which it writes the change")
        if self.force and self.target is None:
            raise click.UsageError("--force goes with --fix --write FILE")


def fixes_of(
    file: Path, given: dict[str, Any], request: "Request", present: "Estimate", catalogs: tuple[Path, ...], target: Path
) -> "Fixes":
    """What ``--fix`` finds for an estimate of the file."""
    from vlmplan.catalog import load_catalog
    from vlmplan.other_trainers import open_trainer_config
    from vlmplan.request import own_request
    from vlmplan.search.fixes import found_fixes

    opened = open_trainer_config(file)
    return found_fixes(own_request(given), opened, request, present, load_catalog(catalogs), catalogs, today(), target)


def refuse_target(target: Path, *, force: bool) -> None:
    """Raise InputError for where nothing can or may be written."""
    from vlmplan.errors import InputError
    from vlmplan.files import refuse_existing

    refuse_existing([target], force=force)
    if target.exists() and not target.stat().st_mode & 0o222:
        raise InputError(f"{target} is read-only; --write needs another file, or one that may be written")


def write_fix(found: "Fixes", file: Path, *, force: bool) -> list[Path]:
    """Write the first change: its files, the DeepSpeed file before the one that names it. Returns their paths."""
    from vlmplan.files import EXECUTABLE, write_atomically

    if not found.fixes:
        return []
    texts = found.fixes[0].patch.files
    for text in texts:
        refuse_target(text.path, force=force)
    main, *beside = texts
    for text in beside:
        write_atomically(_target(text.path), text.after, force=force)
    mode = file.stat().st_mode & EXECUTABLE | OWNER_WRITES
    write_atomically(_target(main.path), main.after, force=force, mode=mode)
    return [text.path for text in texts]


def _target(path: Path) -> Path:
    """What a link leads to, so that it stays a link."""
    return path.resolve() if path.is_symlink() else path


def run_fix(
    file: Path,
    given: dict[str, Any],
    request: "Request",
    catalogs: tuple[Path, ...],
    choice: FixOptions,
    *,
    as_json: bool,
) -> int:
    """Find, show and write. 0 if the changed file fits, or the present one does; 3 if nothing helps."""
    from vlmplan.answers import fix, to_fit
    from vlmplan.answers.reading import document
    from vlmplan.cli.estimate import EXIT_DOES_NOT_FIT, described, estimate, only_estimated
    from vlmplan.cli.to_fit import command_text
    from vlmplan.memory.device import Verdict
    from vlmplan.search.way_out import WayOut

    if choice.target is not None:
        refuse_target(choice.target, force=choice.force)
    answer = only_estimated(request, catalogs)
    found = fixes_of(file, given, request, answer.estimate, catalogs, choice.target or file)
    is_done = found.fits_already or bool(found.fixes)
    way_out = None if is_done else WayOut(clusters=(answer.estimate.cluster,), other_machine=found.other_machine)
    written = [] if choice.target is None else write_fix(found, file, force=choice.force)
    command = command_text(estimate, catalogs, order=("config", *given))
    if as_json:
        assert request.configured is not None
        print_document(
            {
                "schema": SCHEMA,
                "config": document(request.configured.config),
                "estimate": described(replace(answer, way_out=way_out), command),
                "fix": fix.document(found),
                "written": [str(path) for path in written],
            }
        )
    else:
        fix.print_fixes(found, today())
        to_fit.print_way_out(way_out, command, today())
        _print_written(written, choice, found)
    return EXIT_DOES_NOT_FIT if not is_done and answer.estimate.verdict is Verdict.DOES_NOT_FIT else 0


def _print_written(written: list[Path], choice: FixOptions, found: "Fixes") -> None:
    from vlmplan.notes import listed
    from vlmplan.render.lines import say

    if written:
        say(f"{listed([str(path) for path in written])} {'is' if len(written) == 1 else 'are'} written")
    elif choice.target is not None:
        say(f"{choice.target} is not written: there is nothing to change")
    elif found.fixes:
        say("--write FILE writes the first")
