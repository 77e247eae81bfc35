"""``vlmplan check``: what the configuration of another trainer means, and whether it fits."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.estimate import EXIT_DOES_NOT_FIT, answered, described, print_answer
from vlmplan.cli.fix import FIX, SCHEMA, FixOptions, run_fix
from vlmplan.cli.options import CATALOG, DATA, FILE, JSON, ONE_CLUSTER, RECIPE, WORKLOAD, options, print_document

if TYPE_CHECKING:
    from vlmplan.request import Request

MODEL = click.option("--model", metavar="NAME", help="In place of the file's.")


@click.command()
@click.argument("file", type=FILE)
@options(FIX, ONE_CLUSTER, MODEL, DATA, WORKLOAD[1:], RECIPE, CATALOG, JSON)
def check(
    file: Path,
    *,
    fixes: bool,
    target: Path | None,
    force: bool,
    as_json: bool,
    catalog_files: tuple[Path, ...],
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
    from vlmplan.answers.reading import document, print_reading
    from vlmplan.cli.estimate import estimate
    from vlmplan.cli.to_fit import command_text
    from vlmplan.memory.device import Verdict
    from vlmplan.render.lines import say
    from vlmplan.request import parse

    choice = FixOptions(fixes=fixes, target=target, force=force)
    if choice.fixes and given["data"] is not None:
        raise click.UsageError(f"--fix changes {file} for the lengths that it says; --data does not go with it yet")
    request = parse({**given, "config": file})
    if choice.fixes:
        return run_fix(file, given, request, catalog_files, choice, as_json=as_json)
    configured = request.configured
    assert configured is not None
    answer = answered(request, catalog_files, None, scales=False) if _has_gpu(request) else None
    command = command_text(estimate, catalog_files, order=("config", *given))
    if as_json:
        found = None if answer is None else described(answer, command)
        print_document(
            {"schema": SCHEMA, "config": document(configured.config), "estimate": found, "fix": None, "written": []}
        )
    else:
        print_reading(configured.config, configured.notes[1:])
        click.echo()
        if answer is None:
            name = shlex.quote(str(file))
            say(f"--gpu NAME:COUNT says whether it fits; vlmplan recommend --config {name} finds where it does")
        else:
            print_answer(answer, command)
    return EXIT_DOES_NOT_FIT if answer is not None and answer.estimate.verdict is Verdict.DOES_NOT_FIT else 0


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
