"""``vlmplan check``: what the configuration of another trainer means, and whether it fits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vlmplan.cli.completion import model_names
from vlmplan.cli.fix import FIX, FixOptions, run_fix
from vlmplan.cli.option_kinds import FILE, SectionedCommand, options, under
from vlmplan.cli.option_words import command_text, words_of
from vlmplan.cli.options import CATALOG, DATA, JSON, MODEL_AND_SAMPLES, ONE_CLUSTER, REPORT, SAVING, WORKLOAD
from vlmplan.cli.output import print_document, refuse_files, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.task_options import TASK
from vlmplan.commands.check import checked_of, described_check, print_check, report
from vlmplan.errors import EXIT_DOES_NOT_FIT, InputError

MODEL = under(
    MODEL_AND_SAMPLES,
    click.option("--model", shell_complete=model_names, metavar="NAME", help="In place of the file's."),
)


@click.command(cls=SectionedCommand)
@click.argument("file", type=FILE)
@options(FIX, ONE_CLUSTER, MODEL, DATA, WORKLOAD[1:], SAVING, RECIPE, EVALUATION, TASK, CATALOG, REPORT, JSON)
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
    """How a configuration of TRL, LLaMA-Factory, ms-swift, axolotl, OpenRLHF, verl, EasyR1, NeMo AutoModel, accelerate
    or Hugging Face's Trainer is read, or a program of theirs or of Unsloth, and its estimate on --gpu.

    FILE is what the trainer is started with: YAML, JSON, a shell script, or a script or notebook in Python that trains
    with transformers' Trainer, TRL's trainers (SFT, DPO, KTO, GRPO, reward models) or Unsloth; scripts are parsed and
    never run. Every key is accounted for: what it means, what the trainer takes where the file is silent, and what has
    no effect on memory or time; a key that is not planned is refused by its name. Options beside the file win. Exit
    code 3 if it does not fit.

    --fix shows what to change of FILE in place of the estimate, and changes nothing; --write FILE writes the first.
    With it the exit code is 3 only if no change that was tried helps.
    """
    from vlmplan.cli.estimate import estimate
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


def check_words(values: Mapping[str, Any]) -> list[str]:
    """The words of ``vlmplan check`` that give these options."""
    return words_of(check, values)
