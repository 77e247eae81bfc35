"""The way out that every command looks for where a setup does not fit, and the commands that take it."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import today, words_of
from vlmplan.memory.device import Verdict

if TYPE_CHECKING:
    from vlmplan.estimate import Estimate
    from vlmplan.plan import Plan
    from vlmplan.search import Recommendation
    from vlmplan.search.way_out import WayOut


def found_way_out(
    given: Mapping[str, Any],
    present: "Estimate",
    catalog_files: tuple[Path, ...],
    *,
    accepts: "Callable[[Estimate], bool] | None" = None,
) -> "WayOut | None":
    """The way out of an estimate of these options, whose numbers ``accepts`` may correct; None where it fits."""
    if present.verdict is not Verdict.DOES_NOT_FIT if accepts is None else accepts(present):
        return None
    from vlmplan.catalog import load_catalog
    from vlmplan.search.way_out import way_out

    return way_out(given, present, load_catalog(catalog_files), today(), accepts=accepts)


def way_out_of_plan(
    plan: "Plan",
    present: "Estimate",
    catalog_files: tuple[Path, ...],
    *,
    accepts: "Callable[[Estimate], bool] | None" = None,
) -> "WayOut | None":
    """The same for a plan, by the options that ask for it.

    Raises VlmplanError where model or hardware of the plan cannot be named on a command line here.
    """
    from vlmplan.catalog import load_catalog
    from vlmplan.launch.plan_options import gpu_of, model_of, options_of

    name, _ = model_of(plan)
    given = options_of(plan, model=name, gpu=gpu_of(plan, load_catalog(catalog_files)))
    return found_way_out(given, present, catalog_files, accepts=accepts)


def searched_way_out_of(
    given: Mapping[str, Any], found: "Recommendation", catalog_files: tuple[Path, ...]
) -> "WayOut | None":
    """The way out of a search that found nothing; None where only its limits on price and time are in the way."""
    if found.plans:
        return None
    from vlmplan.catalog import load_catalog
    from vlmplan.search.searches import Searches
    from vlmplan.search.way_out import searched_way_out

    searches = Searches(load_catalog(catalog_files), found.workload.model, found.as_of)
    if searches.fits({**given, "max_usd": None, "max_hours": None}):
        return None
    return searched_way_out(given, searches.sought(given), searches)


def command_text(command: click.Command, catalog_files: tuple[Path, ...]) -> Callable[[Mapping[str, Any]], str]:
    """What makes a command line of options: the command's name, the catalogs that were read, and the options."""

    def text(options: Mapping[str, Any]) -> str:
        defaults = {option.name: option.default for option in command.params}
        values = {name: value for name, value in options.items() if value is not None and value != defaults[name]}
        values |= {"catalog_files": catalog_files} if catalog_files else {}
        return shlex.join(["vlmplan", str(command.name), *words_of(command, values)])

    return text
