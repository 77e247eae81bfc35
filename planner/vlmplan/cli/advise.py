"""``vlmplan advise``: what each single change of a plan would save or cost."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.day import today
from vlmplan.cli.of_data import OfData, described_data, of_search, print_of_data
from vlmplan.cli.option_kinds import options
from vlmplan.cli.option_words import words_of
from vlmplan.cli.options import CATALOG, CONFIG, DATA, FORCE, JSON, REPORT, WORKLOAD
from vlmplan.cli.output import print_document, refuse_files, write_report
from vlmplan.cli.recipe_options import EVALUATION, RECIPE
from vlmplan.cli.recommend import EXIT_NOTHING_FITS, LIMITS, MACHINES
from vlmplan.cli.task_options import TASK

if TYPE_CHECKING:
    from vlmplan.request import Options, Request
    from vlmplan.search.advice import Advice


@click.command()
@options(CONFIG, DATA, WORKLOAD, MACHINES)
@click.option(
    "--objective", type=click.Choice(("cost", "time")), help="[default: time with --max-usd alone, else cost]"
)
@options(LIMITS, RECIPE, EVALUATION, TASK, CATALOG, REPORT, FORCE, JSON)
def advise(*, as_json: bool, catalog_files: tuple[Path, ...], html: Path | None, force: bool, **given: Any) -> int:
    """Which single change of the best plan buys most: more GPUs or nodes, other GPUs, another method, shorter samples.

    The plan is that of recommend with the same options. --max-hours is a deadline: what meets it for least money;
    --max-usd a budget: what is fastest within it. What is not changed stays, but for micro batch, engine and
    checkpointing, which follow. Where nothing fits, it shows what makes it fit. Exit code 3 if nothing does.
    """
    from vlmplan.request import parse

    refuse_files({"--html": html}, force=force)
    request = parse(given)
    answer = answered(request, catalog_files)
    command = command_of(request, catalog_files, order=tuple(given))
    write_report(html, lambda: report(answer, command(request), command), force=force)
    if as_json:
        print_document(described(answer, command))
    else:
        print_answer(answer, command)
    return 0 if answer.found.base is not None or answer.found.best is not None else EXIT_NOTHING_FITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An advice, and what the samples mean for the plan as it is."""

    found: "Advice"
    data: OfData | None


def answered(request: "Request", catalog_files: tuple[Path, ...]) -> Answer:
    """The advice on a request; one that names no objective has time where a budget is all that it limits."""
    from vlmplan.catalog import load_catalog
    from vlmplan.request import Objective
    from vlmplan.requested import searched_model
    from vlmplan.search.advice import advice

    wanted = request.search
    if wanted.objective is None:
        has_budget_alone = wanted.max_usd is not None and wanted.max_hours is None
        own = Objective.TIME if has_budget_alone else Objective.COST
        request = replace(request, search=replace(wanted, objective=own))
    found = advice(request, load_catalog(catalog_files), searched_model(request), today())
    return Answer(found=found, data=of_search(request, None if found.base is None else found.base.estimate))


def command_of(
    request: "Request", catalog_files: tuple[Path, ...], *, order: Sequence[str]
) -> "Callable[[Request], str]":
    """What makes a command line of a changed request, with the objective as ``request`` has it, or none."""
    from vlmplan.cli.to_fit import command_text

    whole = command_text(advise, catalog_files, order=order)

    def text(asked: "Request") -> str:
        return whole(replace(asked, search=replace(asked.search, objective=request.search.objective)))

    return text


def described(answer: Answer, command: "Callable[[Request], str]") -> dict[str, Any]:
    """The document of an answer."""
    from vlmplan.answers.advice import document
    from vlmplan.answers.to_fit import document as to_fit_json

    found = answer.found
    return document(found, words) | described_data(answer.data) | to_fit_json(found.way_out, command, found.as_of)


def report(answer: Answer, asked: str, command: "Callable[[Request], str]") -> str:
    """The page of an answer that was ``asked`` for with that command line."""
    from vlmplan.answers.to_fit import way_out_lines
    from vlmplan.render.captured import printed
    from vlmplan.reports import advice_report

    hints = way_out_lines(answer.found.way_out, command, answer.found.as_of)
    more = printed(lambda: print_of_data(answer.data))
    return advice_report(answer.found, words, hints=hints, command_text=asked, more=more)


def print_answer(answer: Answer, command: "Callable[[Request], str]") -> None:
    """What people see of an answer."""
    from vlmplan.answers.advice import print_advice
    from vlmplan.answers.to_fit import print_way_out

    print_advice(answer.found, words)
    print_of_data(answer.data)
    print_way_out(answer.found.way_out, command, answer.found.as_of)


def words(changed: "Options") -> str:
    """Options as the words of a command line; those that are to be left out have a minus before them."""
    given = {name: value for name, value in changed.items() if value is not None}
    left_out = [f"without --{name.replace('_', '-')}" for name, value in changed.items() if value is None]
    return ", ".join([*([shlex.join(words_of(advise, given))] if given else []), *left_out])
