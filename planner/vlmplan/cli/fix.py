"""``vlmplan check --fix``: changes of the trainer's own file, and writing the first."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.option_kinds import FILE, under
from vlmplan.cli.option_words import command_text
from vlmplan.cli.output import print_document, waiting_at
from vlmplan.commands.fix import described_fix, fixed_of, print_fixed, refuse_target, write_patch
from vlmplan.errors import EXIT_DOES_NOT_FIT

if TYPE_CHECKING:
    from vlmplan.proposals.fixes import Fixes
    from vlmplan.request import Request

FIX = under(
    "Change of the file",
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
    from vlmplan.cli.estimate import estimate
    from vlmplan.memory.device import Verdict
    from vlmplan.request import own_request

    if choice.target is not None:
        refuse_target(choice.target, force=choice.force)
    waiting = waiting_at("looking for changes", as_json=as_json)
    fixed = fixed_of(file, own_request(given), request, catalogs, choice.target, waiting)
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
