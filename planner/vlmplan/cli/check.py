"""``vlmplan check``: what the configuration of another trainer means, and whether it fits."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.estimate import EXIT_DOES_NOT_FIT, Answer, answered, described, hint_lines, print_answer
from vlmplan.cli.fix import FIX, SCHEMA, FixOptions, fixes_to_fit, run_fix
from vlmplan.cli.option_kinds import FILE, options
from vlmplan.cli.options import CATALOG, DATA, JSON, ONE_CLUSTER, REPORT, SAVING, WORKLOAD
from vlmplan.cli.output import print_document, refuse_files, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.errors import InputError

if TYPE_CHECKING:
    from vlmplan.request import ConfiguredRequest, Request
    from vlmplan.search.fixes import Fix, Fixes

MODEL = click.option("--model", metavar="NAME", help="In place of the file's.")


@click.command()
@click.argument("file", type=FILE)
@options(FIX, ONE_CLUSTER, MODEL, DATA, WORKLOAD[1:], SAVING, RECIPE, EVALUATION, CATALOG, REPORT, JSON)
def check(
    file: Path,
    *,
    fixes: bool,
    target: Path | None,
    force: bool,
    as_json: bool,
    catalog_files: tuple[Path, ...],
    html: Path | None,
    **given: Any,
) -> int:
    """How a configuration of TRL, LLaMA-Factory, ms-swift, accelerate or Hugging Face's Trainer is read, and its
    estimate on --gpu.

    FILE is what the trainer is started with: YAML, JSON or a shell script, which is parsed and never run. Every key is
    accounted for: what it means, what the trainer takes where the file is silent, and what has no effect on memory or
    time; a key that is not planned is refused by its name. Options beside the file win. Exit code 3 if it does not fit.

    --fix shows what to change of FILE in place of the estimate, and changes nothing; --write FILE writes the first.
    With it the exit code is 3 only if no change that was tried helps.
    """
    from vlmplan.cli.estimate import estimate
    from vlmplan.cli.to_fit import command_text
    from vlmplan.memory.device import Verdict
    from vlmplan.request import parse

    choice = FixOptions(fixes=fixes, target=target, force=force and html is None)
    request = parse({**given, "config": file})
    if choice.fixes and html is not None:
        raise InputError("--html is of what a file means; --fix shows changes of it: leave one of them out")
    refuse_files({"--html": html}, force=force)
    if choice.fixes:
        return run_fix(file, given, request, catalog_files, choice, as_json=as_json)
    checked = checked_of(request, catalog_files)
    command = command_text(estimate, catalog_files, order=("config", *given))
    write_report(html, lambda: report(checked, command(request), command), force=force)
    if as_json:
        print_document(described_check(checked, command))
    else:
        print_check(checked, command)
    answer = checked.answer
    return EXIT_DOES_NOT_FIT if answer is not None and answer.estimate.verdict is Verdict.DOES_NOT_FIT else 0


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
    """What people see of what was checked."""
    from vlmplan.answers.reading import print_reading
    from vlmplan.render.lines import say

    print_reading(checked.configured.config, checked.configured.notes[1:])
    click.echo()
    if checked.answer is None:
        name = shlex.quote(str(checked.configured.path))
        say(f"--gpu NAME:COUNT says whether it fits; vlmplan recommend --config {name} finds where it does")
    else:
        said = checked.configured.notes  # above, in full
        notes = [note for note in checked.answer.hardware_notes if note not in said]
        print_answer(replace(checked.answer, hardware_notes=notes), command, checked.least_fix)


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
