"""``vlmplan check --fix``: changes of the trainer's own file, and writing the first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.day import today
from vlmplan.cli.option_kinds import FILE, Decorator
from vlmplan.cli.output import print_document

if TYPE_CHECKING:
    from vlmplan.cli.estimate import Answer
    from vlmplan.estimation import Estimate
    from vlmplan.other_trainers.editing.patch import Patch
    from vlmplan.request import ConfiguredRequest, Request
    from vlmplan.search.fixes import Fixes
    from vlmplan.search.way_out import WayOut

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
    file: Path, own: "Request", request: "Request", present: "Estimate", catalogs: tuple[Path, ...], target: Path
) -> "Fixes":
    """What ``--fix`` finds for an estimate of the file."""
    from vlmplan.catalog import load_catalog
    from vlmplan.other_trainers import open_trainer_config
    from vlmplan.search.fixes import found_fixes

    opened = open_trainer_config(file)
    return found_fixes(own, opened, request, present, load_catalog(catalogs), catalogs, today(), target)


def fixes_to_fit(request: "Request", present: "Estimate", catalogs: tuple[Path, ...]) -> "Fixes | None":
    """What ``--fix`` finds for a request that does not fit; None where it finds nothing, or the file cannot be
    changed."""
    from vlmplan.errors import VlmplanError

    configured = request.configured
    if configured is None or configured.own is None:
        return None
    try:
        found = fixes_of(configured.path, configured.own, request, present, catalogs, configured.path)
    except VlmplanError:  # a file that came alone, or that nobody starts a trainer with
        return None
    return found if found.fixes else None


def refuse_target(target: Path, *, force: bool) -> None:
    """Raise InputError for where nothing can or may be written."""
    from vlmplan.errors import InputError
    from vlmplan.files import refuse_existing

    refuse_existing([target], force=force)
    if target.exists() and not target.stat().st_mode & 0o222:
        raise InputError(f"{target} is read-only; --write needs another file, or one that may be written")


def write_patch(patch: "Patch", file: Path, *, force: bool) -> list[Path]:
    """Write a change of ``file``: the DeepSpeed file before the one that names it. Returns their paths."""
    from vlmplan.files import EXECUTABLE, write_atomically

    for text in patch.files:
        refuse_target(text.path, force=force)
    main, *beside = patch.files
    for text in beside:
        write_atomically(_target(text.path), text.after, force=force)
    mode = file.stat().st_mode & EXECUTABLE | OWNER_WRITES
    write_atomically(_target(main.path), main.after, force=force, mode=mode)
    return [text.path for text in patch.files]


def _target(path: Path) -> Path:
    """What a link leads to, so that it stays a link."""
    return path.resolve() if path.is_symlink() else path


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What was found for a file: its estimate, changes of it, and the way out where there is none."""

    configured: "ConfiguredRequest"
    answer: "Answer"
    found: "Fixes"
    way_out: "WayOut | None"

    @property
    def is_done(self) -> bool:
        """Whether the changed file fits, or the present one does."""
        return self.found.fits_already or bool(self.found.fixes)


def fixed_of(file: Path, own: "Request", request: "Request", catalogs: tuple[Path, ...], target: Path | None) -> Fixed:
    """The changes of a file that ``request`` was made of, with the options of ``own`` beside it."""
    from vlmplan.cli.estimate import only_estimated
    from vlmplan.search.way_out import WayOut

    assert request.configured is not None
    answer = only_estimated(request, catalogs)
    found = fixes_of(file, own, request, answer.estimate, catalogs, target or file)
    is_done = found.fits_already or bool(found.fixes)
    way_out = None if is_done else WayOut(clusters=(answer.estimate.cluster,), other_machine=found.other_machine)
    return Fixed(configured=request.configured, answer=answer, found=found, way_out=way_out)


def described_fix(fixed: Fixed, command: "Callable[[Request], str]", written: Sequence[Path] = ()) -> dict[str, Any]:
    """The document of what was found, and which files were written."""
    from vlmplan.answers import fix
    from vlmplan.answers.reading import document
    from vlmplan.cli.estimate import described

    return {
        "schema": SCHEMA,
        "config": document(fixed.configured.config),
        "estimate": described(replace(fixed.answer, way_out=fixed.way_out), command),
        "fix": fix.document(fixed.found),
        "written": [str(path) for path in written],
    }


def print_fixed(fixed: Fixed, command: "Callable[[Request], str]") -> None:
    """What people see of what was found."""
    from vlmplan.answers import fix, to_fit

    fix.print_fixes(fixed.found, today())
    to_fit.print_way_out(fixed.way_out, command, today())


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
    from vlmplan.cli.estimate import EXIT_DOES_NOT_FIT, estimate
    from vlmplan.cli.to_fit import command_text
    from vlmplan.memory.device import Verdict
    from vlmplan.request import own_request

    if choice.target is not None:
        refuse_target(choice.target, force=choice.force)
    fixed = fixed_of(file, own_request(given), request, catalogs, choice.target)
    written: list[Path] = []
    if choice.target is not None and fixed.found.fixes:
        written = write_patch(fixed.found.fixes[0].patch, file, force=choice.force)
    command = command_text(estimate, catalogs, order=("config", *given))
    if as_json:
        print_document(described_fix(fixed, command, written))
    else:
        print_fixed(fixed, command)
        _print_written(written, choice, fixed.found)
    verdict = fixed.answer.estimate.verdict
    return EXIT_DOES_NOT_FIT if not fixed.is_done and verdict is Verdict.DOES_NOT_FIT else 0


def _print_written(written: list[Path], choice: FixOptions, found: "Fixes") -> None:
    from vlmplan.notes import listed
    from vlmplan.render.lines import say

    if written:
        say(f"{listed([str(path) for path in written])} {'is' if len(written) == 1 else 'are'} written")
    elif choice.target is not None:
        say(f"{choice.target} is not written: there is nothing to change")
    elif found.fixes:
        say("--write FILE writes the first")
