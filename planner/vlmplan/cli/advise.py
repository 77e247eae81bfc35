"""``vlmplan advise``: what each single change of a plan would save or cost."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import CATALOG, CONFIG, DATA, JSON, RECIPE, WORKLOAD, options, print_document, today, words_of
from vlmplan.cli.recommend import EXIT_NOTHING_FITS, LIMITS, MACHINES

if TYPE_CHECKING:
    from vlmplan.request import Options


@click.command()
@options(CONFIG, DATA, WORKLOAD, MACHINES)
@click.option(
    "--objective", type=click.Choice(("cost", "time")), help="[default: time with --max-usd alone, else cost]"
)
@options(LIMITS, RECIPE, CATALOG, JSON)
def advise(*, as_json: bool, catalog_files: tuple[Path, ...], **given: Any) -> int:
    """Which single change of the best plan buys most: more GPUs or nodes, other GPUs, another method, shorter samples.

    The plan is that of recommend with the same options. --max-hours is a deadline: what meets it for least money;
    --max-usd a budget: what is fastest within it. What is not changed stays, but for micro batch, engine and
    checkpointing, which follow. Where nothing fits, it shows what makes it fit. Exit code 3 if nothing does.
    """
    from vlmplan.answers.advice import document, print_advice
    from vlmplan.answers.to_fit import document as to_fit_json
    from vlmplan.answers.to_fit import print_way_out
    from vlmplan.catalog import load_catalog
    from vlmplan.cli.to_fit import command_text
    from vlmplan.request import Objective, Request, parse
    from vlmplan.search.advice import advice

    request = parse(given)
    objective = request.search.objective
    has_budget_alone = given["max_usd"] is not None and given["max_hours"] is None
    if objective is None:
        own = Objective.TIME if has_budget_alone else Objective.COST
        request = replace(request, search=replace(request.search, objective=own))
    found = advice(request, load_catalog(catalog_files), request.model_files, today())
    whole = command_text(advise, catalog_files, order=tuple(given))

    def text(asked: Request) -> str:
        """With the objective as it was given, or none."""
        return whole(replace(asked, search=replace(asked.search, objective=objective)))

    if as_json:
        described = document(found, words) | to_fit_json(found.way_out, text, found.as_of)
        print_document(described)
    else:
        print_advice(found, words)
        print_way_out(found.way_out, text, found.as_of)
    return 0 if found.base is not None or found.best is not None else EXIT_NOTHING_FITS


def words(changed: "Options") -> str:
    """Options as the words of a command line; those that are to be left out have a minus before them."""
    given = {name: value for name, value in changed.items() if value is not None}
    left_out = [f"without --{name.replace('_', '-')}" for name, value in changed.items() if value is None]
    return ", ".join([*([shlex.join(words_of(advise, given))] if given else []), *left_out])
