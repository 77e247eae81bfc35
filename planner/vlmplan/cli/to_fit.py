"""The way out that every command looks for where a setup does not fit, and the commands that take it."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vlmplan.cli.day import today
from vlmplan.cli.option_words import words_of
from vlmplan.memory.device import Verdict

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.request import OptionValue, Request
    from vlmplan.search import Recommendation
    from vlmplan.search.way_out import WayOut


def found_way_out(
    request: "Request",
    present: "Estimate",
    catalog_files: tuple[Path, ...],
    *,
    accepts: "Callable[[Estimate], bool] | None" = None,
) -> "WayOut | None":
    """The way out of an estimate of this request, whose numbers ``accepts`` may correct; None where it fits."""
    if present.verdict is not Verdict.DOES_NOT_FIT if accepts is None else accepts(present):
        return None
    from vlmplan.catalog import load_catalog
    from vlmplan.search.way_out import way_out

    return way_out(request, present, load_catalog(catalog_files), today(), accepts=accepts)


def way_out_of_plan(
    plan: "Plan",
    present: "Estimate",
    catalog_files: tuple[Path, ...],
    *,
    accepts: "Callable[[Estimate], bool] | None" = None,
) -> "WayOut | None":
    """The same for a plan, by the request that asks for it.

    Raises VlmplanError where model or hardware of the plan cannot be named on a command line here.
    """
    from vlmplan.catalog import load_catalog
    from vlmplan.launch.plan_options import gpu_of, model_of, request_of

    name, _ = model_of(plan)
    request = request_of(plan, model=name, gpu=gpu_of(plan, load_catalog(catalog_files)))
    return found_way_out(request, present, catalog_files, accepts=accepts)


def searched_way_out_of(
    request: "Request", found: "Recommendation", catalog_files: tuple[Path, ...]
) -> "WayOut | None":
    """The way out of a search that found nothing; None where something would fit without its limits on price and
    time."""
    if found.plans:
        return None
    from vlmplan.catalog import load_catalog
    from vlmplan.search.searches import Searches
    from vlmplan.search.way_out import UNLIMITED, searched_way_out

    searches = Searches(load_catalog(catalog_files), found.workload.model, found.as_of)
    if searches.fits(request.with_options(UNLIMITED)):
        return None
    return searched_way_out(request, searches.query(request), searches)


def command_text(
    command: click.Command, catalog_files: tuple[Path, ...], *, order: Sequence[str] = ()
) -> "Callable[[Request], str]":
    """What makes a command line of a request: the command's name, its options, those of ``order`` first, and the
    catalogs that were read."""

    def text(request: "Request") -> str:
        values = given_options(command, request, order)
        values |= {"catalog_files": catalog_files} if catalog_files else {}
        return shlex.join(["vlmplan", str(command.name), *words_of(command, values)])

    return text


def given_options(command: click.Command, request: "Request", order: Sequence[str] = ()) -> "dict[str, OptionValue]":
    """The options that ``command`` has to be given for the request. One that it does not have follows from others, as
    the trainer of a ``--task`` does."""
    defaults = {option.name: option.default for option in command.params}
    known = {name: value for name, value in request.options().items() if value is not None}
    names = dict.fromkeys([*(name for name in order if name in known), *known])
    return {name: known[name] for name in names if name in defaults and known[name] != defaults[name]}
