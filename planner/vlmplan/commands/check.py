"""What the configuration of another trainer means, and its estimate, for ``vlmplan check`` and Python."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.commands.estimate import Answer, answered, described, hint_lines, print_answer
from vlmplan.commands.fix import SCHEMA, fixes_to_fit

if TYPE_CHECKING:
    from vlmplan.proposals.fixes import Fix, Fixes
    from vlmplan.request import ConfiguredRequest, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A configuration as it was read, and its estimate where GPUs are known; ``fixes``: changes of the file, where it
    does not fit and some are found."""

    configured: "ConfiguredRequest"
    answer: Answer | None
    fixes: "Fixes | None" = None

    @property
    def least_fix(self) -> "Fix | None":
        """The one that ``--fix`` shows first."""
        return None if self.fixes is None else self.fixes.fixes[0]


def checked_of(request: "Request", catalog_files: tuple[Path, ...]) -> Checked:
    """What there is to say of the configuration that a request names."""
    assert request.configured is not None
    answer = answered(request, catalog_files, None, scales=False) if _has_gpu(request) else None
    fixes = None if answer is None or answer.way_out is None else fixes_to_fit(request, answer.estimate, catalog_files)
    return Checked(configured=request.configured, answer=answer, fixes=fixes)


def described_check(checked: Checked, command: "Callable[[Request], str]") -> dict[str, Any]:
    """The document of what was checked."""
    from vlmplan.answers import fix
    from vlmplan.answers.reading import document

    found = None if checked.answer is None else described(checked.answer, command)
    fixes = None if checked.fixes is None else fix.document(checked.fixes)
    config = document(checked.configured.config)
    return {"schema": SCHEMA, "config": config, "estimate": found, "fix": fixes, "written": []}


def report(checked: Checked, asked: str, command: "Callable[[Request], str]") -> str:
    """The page of what was checked; ``asked``: the command line of its estimate."""
    from vlmplan.reports import check_report

    config, answer = checked.configured.config, checked.answer
    return check_report(
        config,
        checked.configured.notes[1:],
        None if answer is None else answer.estimate,
        hardware_notes=() if answer is None else answer.hardware_notes,
        hints=() if answer is None else hint_lines(answer, command, checked.least_fix),
        command_text=asked,
    )


def print_check(checked: Checked, command: "Callable[[Request], str]") -> None:
    """What people see of what was checked: whether it fits first, where GPUs are known, and then how it was read."""
    from vlmplan.answers.reading import print_keys, print_reading, reading_line
    from vlmplan.notes import footnotes
    from vlmplan.render.lines import say

    config, notes = checked.configured.config, checked.configured.notes[1:]
    if checked.answer is None:
        print_reading(config, notes)
        click.echo()
        name = shlex.quote(str(checked.configured.path))
        say(f"--gpu NAME:COUNT says whether it fits; vlmplan recommend --config {name} finds where it does")
        return
    said = footnotes(checked.configured.notes)  # below, in full
    others = [note for note in checked.answer.hardware_notes if note not in said]
    say(reading_line(config))
    print_answer(checked.answer._replace(hardware_notes=others), command, checked.least_fix)
    click.echo()
    say("what was read:")
    print_keys(config, footnotes(notes))


def _has_gpu(request: "Request") -> bool:
    """Whether GPUs are named, or this machine has some."""
    from vlmplan.errors import UnavailableError
    from vlmplan.machine.nvml import read_machine

    if request.hardware.gpus:
        return True
    try:
        return bool(read_machine().cards)
    except UnavailableError:
        return False
