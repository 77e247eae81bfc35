"""The way out that every command looks for where a setup does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.commands.day import today

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.plan import Plan
    from vlmplan.proposals.way_out import WayOut
    from vlmplan.request import Request
    from vlmplan.search import Recommendation


def found_way_out(
    request: "Request",
    present: "Estimate",
    catalog_files: tuple[Path, ...],
    *,
    accepts: "Callable[[Estimate], bool] | None" = None,
    corrected: "Callable[[Estimate], Estimate] | None" = None,
) -> "WayOut | None":
    """The way out of an estimate of this request, whose numbers ``accepts`` may correct; None where it fits.
    ``corrected``: an estimate with what samples of different lengths take, which ``present`` has."""
    from vlmplan.memory.device import Verdict

    if present.verdict is not Verdict.DOES_NOT_FIT if accepts is None else accepts(present):
        return None
    from vlmplan.catalog import load_catalog
    from vlmplan.proposals.way_out import way_out

    return way_out(request, present, load_catalog(catalog_files), today(), accepts=accepts, corrected=corrected)


def way_out_of_plan(
    plan: "Plan",
    present: "Estimate",
    catalog_files: tuple[Path, ...],
    *,
    accepts: "Callable[[Estimate], bool] | None" = None,
) -> "WayOut | None":
    """The way out of a plan's estimate, by the request that asks for the plan; None where it fits.

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
    from vlmplan.proposals.searches import Searches
    from vlmplan.proposals.way_out import UNLIMITED, searched_way_out

    searches = Searches(load_catalog(catalog_files), found.workload.model, found.as_of)
    if searches.fits(request.with_options(UNLIMITED)):
        return None
    return searched_way_out(request, searches.query(request), searches)
