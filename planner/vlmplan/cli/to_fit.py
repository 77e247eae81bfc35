"""What every command says where a setup does not fit: the least changes on the same cards and the cheapest other
machine, each as a command to copy."""

import shlex
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vlmplan.cli.options import today, words_of
from vlmplan.memory.device import Verdict

if TYPE_CHECKING:
    from vlmplan.estimate import Estimate
    from vlmplan.plan import Plan
    from vlmplan.search import Recommendation
    from vlmplan.search.other_machine import OtherMachine
    from vlmplan.search.way_out import ToFit, WayOut

NOTHING: Mapping[str, Any] = {"to_fit": None, "other_machine": None}
"""What ``document`` says of what fits."""


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


def document(found: "WayOut | None", text: Callable[[Mapping[str, Any]], str], on: date) -> dict[str, Any]:
    """Keys of every command's JSON; null where it fits, or where nothing was found.

    ``options`` of ``to_fit`` are those that change, null where one is taken away; ``changes`` say which belong
    together. None of them can be left out alone.
    """
    if found is None:
        return dict(NOTHING)
    to_fit, other = found.to_fit, found.other_machine
    return {
        "to_fit": None if to_fit is None else _to_fit_json(to_fit, text),
        "other_machine": None if other is None else _other_json(other, text, on),
    }


def _to_fit_json(found: "ToFit", text: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    combination, estimate = found.combination, found.estimate
    return {
        "changes": [
            {"change": change.name, "options": dict(change.options), "keeps_results": change.keeps_results}
            for change in combination.changes
        ],
        "options": combination.changed,
        "keeps_results": combination.keeps_results,
        "command": text(combination.options),
        "verdict": estimate.verdict.value,
        "device_bytes": estimate.device.device_bytes,
        "usable_bytes": estimate.device.usable_bytes,
        "host_bytes_per_node": estimate.host.peak_bytes,
        "step_seconds": estimate.step_seconds,
    }


def _other_json(found: "OtherMachine", text: Callable[[Mapping[str, Any]], str], on: date) -> dict[str, Any]:
    from vlmplan.cli.gpus_view import offer_json

    plan = found.plan
    cluster = plan.estimate.cluster
    return {
        "gpu": cluster.node.gpu.id,
        "num_gpus": cluster.node.num_gpus,
        "num_nodes": cluster.num_nodes,
        "offer": None if plan.offer is None else offer_json(plan.offer, on),
        "usd_per_hour": plan.usd_per_hour,
        "usd": plan.usd,
        "hours": plan.hours,
        "command": text(found.options),
        "device_bytes": plan.estimate.device.device_bytes,
    }
