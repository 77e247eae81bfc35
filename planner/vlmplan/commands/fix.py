"""Changes of another trainer's file with which it fits, and writing one, for ``vlmplan check --fix`` and Python."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmplan.commands.day import today
from vlmplan.commands.estimate import Answer, described, only_estimated
from vlmplan.commands.waiting import Waiting, shown

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.other_trainers.editing.patch import Patch
    from vlmplan.proposals.fixes import Fixes
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.request import ConfiguredRequest, Request

SCHEMA = "vlmplan.check/1"
OWNER_WRITES = 0o200


def fixes_of(
    file: Path, own: "Request", request: "Request", present: "Estimate", catalogs: tuple[Path, ...], target: Path
) -> "Fixes":
    """What ``--fix`` finds for an estimate of the file."""
    from vlmplan.other_trainers import open_trainer_config
    from vlmplan.proposals.fixes import found_fixes

    opened = open_trainer_config(file)
    return found_fixes(own, opened, request, present, catalogs, today(), target)


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
    from vlmplan.files import refuse_existing, refuse_unwritable

    refuse_existing([target], force=force)
    if target.exists() and not target.stat().st_mode & 0o222:
        raise InputError(f"{target} is read-only; --write needs another file, or one that may be written")
    refuse_unwritable(target)


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


def fixed_of(
    file: Path,
    own: "Request",
    request: "Request",
    catalogs: tuple[Path, ...],
    target: Path | None,
    waiting: Waiting = nullcontext,
) -> Fixed:
    """The changes of a file that ``request`` was made of, with the options of ``own`` beside it."""
    from vlmplan.proposals.way_out import WayOut

    assert request.configured is not None
    answer = only_estimated(request, catalogs)
    with shown(answer.estimate.workload.model, waiting):
        found = fixes_of(file, own, request, answer.estimate, catalogs, target or file)
    is_done = found.fits_already or bool(found.fixes)
    way_out = None if is_done else WayOut(clusters=(answer.estimate.cluster,), other_machine=found.other_machine)
    return Fixed(configured=request.configured, answer=answer, found=found, way_out=way_out)


def described_fix(fixed: Fixed, command: "Callable[[Request], str]", written: Sequence[Path] = ()) -> dict[str, Any]:
    """The document of what was found, and which files were written."""
    from vlmplan.answers import fix
    from vlmplan.answers.reading import document

    return {
        "schema": SCHEMA,
        "config": document(fixed.configured.config),
        "estimate": described(fixed.answer._replace(way_out=fixed.way_out), command),
        "fix": fix.document(fixed.found),
        "written": [str(path) for path in written],
    }


def print_fixed(fixed: Fixed, command: "Callable[[Request], str]") -> None:
    """What people see of what was found."""
    from vlmplan.answers import fix, to_fit

    fix.print_fixes(fixed.found, today())
    to_fit.print_way_out(fixed.way_out, command, today())
