"""``vlmplan advise``: what each single change of a plan would save or cost."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.option_kinds import SectionedCommand, one_of, options, under
from vlmplan.cli.option_words import command_text, words_of
from vlmplan.cli.options import CATALOG, CONFIG, DATA, FORCE, JSON, OFFERS, REPORT, WORKLOAD
from vlmplan.cli.output import print_document, refuse_files, refuse_idle_force, waiting_at, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.recommend import LIMITS, SOME_MACHINES
from vlmplan.cli.task_options import TASK
from vlmplan.commands.advise import answered, described, print_answer, report
from vlmplan.errors import EXIT_DOES_NOT_FIT

if TYPE_CHECKING:
    from vlmplan.request import Options, Request
OBJECTIVE = under(
    OFFERS,
    click.option("--objective", type=one_of(("cost", "time")), help="[default: time with --max-usd alone, else cost]"),
)


@click.command(cls=SectionedCommand)
@options(WORKLOAD[:1], CONFIG, DATA, WORKLOAD[1:], SOME_MACHINES, OBJECTIVE, LIMITS, RECIPE, EVALUATION, TASK)
@options(CATALOG, REPORT, FORCE, JSON)
def advise(*, as_json: bool, catalog_files: tuple[Path, ...], html: Path | None, force: bool, **given: Any) -> int:
    """Which single change of the best plan buys most: more GPUs or nodes, other GPUs, another method, shorter samples.

    The plan is that of recommend with the same options. --max-hours is a deadline: what meets it for least money;
    --max-usd a budget: what is fastest within it. What is not changed stays, but for micro batch, engine and
    checkpointing, which follow. Where nothing fits, it shows what makes it fit. Exit code 3 if nothing does.
    """
    from vlmplan.request import parse

    refuse_idle_force({"--html": html}, force=force)
    refuse_files({"--html": html}, force=force)
    request = parse(given)
    answer = answered(request, catalog_files, waiting_at("searching", as_json=as_json))
    command = command_of(request, catalog_files, order=tuple(given))
    write_report(html, lambda: report(answer, command(request), command, words), force=force)
    if as_json:
        print_document(described(answer, command, words))
    else:
        print_answer(answer, command, words)
    return 0 if answer.found.base is not None or answer.found.best is not None else EXIT_DOES_NOT_FIT


def command_of(
    request: "Request", catalog_files: tuple[Path, ...], *, order: Sequence[str]
) -> "Callable[[Request], str]":
    """What makes a command line of a changed request, with the objective as ``request`` has it, or none."""
    whole = command_text(advise, catalog_files, order=order)

    def text(asked: "Request") -> str:
        return whole(replace(asked, search=replace(asked.search, objective=request.search.objective)))

    return text


def words(changed: "Options") -> str:
    """Options as the words of a command line; those that are to be left out have a minus before them."""
    given = {name: value for name, value in changed.items() if value is not None}
    left_out = [f"without --{name.replace('_', '-')}" for name, value in changed.items() if value is None]
    return ", ".join([*([shlex.join(words_of(advise, given))] if given else []), *left_out])
