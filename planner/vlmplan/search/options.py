"""The search that options of the command line ask for."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.cost import CostAssumptions
from vlmplan.errors import InputError
from vlmplan.gpu_choice import parse_gpu_choice
from vlmplan.hardware import Pricing
from vlmplan.request import (
    ds_config_of,
    fixed_recipe,
    host_bytes_of,
    inter_node_rate,
    length_notes,
    num_nodes_of,
    samples_per_step,
    workload_of,
)
from vlmplan.search import Limits, Objective, Sought
from vlmplan.search.clusters import Candidate, candidates
from vlmplan.search.offers import OfferFilter
from vlmplan.workload import ModelFiles

ASSUMED_OPTIONS = {
    "interruptions_per_day": "spot_interruptions_per_day",
    "download_gbit_per_second": "download_gbit",
}
"""Options by the field of ``CostAssumptions`` that they state."""


def sought(
    given: Mapping[str, Any],
    catalog: Catalog,
    model: ModelFiles,
    today: date,
    *,
    wants: Callable[[Candidate], bool] = lambda _: True,
) -> Sought:
    """The search of ``given`` among the candidates that ``wants`` takes.

    Raises InputError for a value that is not allowed, DoesNotFitError where no offer is left.
    """
    fixed, config = fixed_recipe(given, model), ds_config_of(given)
    limits = Limits(max_usd=given["max_usd"], max_hours=given["max_hours"])
    stated = {field: given[name] for field, name in ASSUMED_OPTIONS.items() if given[name] is not None}
    assumed = CostAssumptions(**stated)
    offers = OfferFilter(
        pricing=tuple(Pricing(name) for name in given["pricing"]),
        providers=given["provider"],
        regions=given["region"],
        max_usd_per_hour=given["max_usd_per_hour"],
        max_price_age_days=given["max_price_age_days"],
    )
    said = () if config is None else config.notes
    choices = [parse_gpu_choice(text) for text in given["gpu"]]
    num_nodes, notes = num_nodes_of(given)
    host_bytes = host_bytes_of(given)
    if host_bytes is not None:
        _check_own_machine(given)
    found, more = candidates(
        catalog, choices=choices, offers=offers, num_nodes=num_nodes, host_bytes=host_bytes, today=today
    )
    if (rate := inter_node_rate(given)) is not None:
        found = [candidate.with_network(rate) for candidate in found]
    workload = workload_of(model, {**given, "global_batch": samples_per_step(given)})
    return Sought(
        workload=workload,
        candidates=[candidate for candidate in found if wants(candidate)],
        fixed=fixed,
        objective=Objective(given["objective"]),
        limits=limits,
        assumed=assumed,
        today=today,
        notes=(*workload.model.notes, *notes, *length_notes(workload, given), *more, *said),
    )


def _check_own_machine(given: Mapping[str, Any]) -> None:
    """Raise InputError where --host-ram, which is of a machine of the user's own, meets options that say otherwise."""
    if not given["gpu"]:
        raise InputError("--host-ram is what a machine of your own has; name its GPUs with --gpu, or --gpu local")
    renting = [name for name in ("provider", "region", "max_usd_per_hour") if given[name] not in (None, ())]
    renting += ["pricing"] if set(given["pricing"]) - {Pricing.OWN.value} else []
    if renting:
        flag = "--" + renting[0].replace("_", "-")
        raise InputError(
            f"--host-ram is what a machine of your own has, but {flag} asks for one to rent; one of the two has to go"
        )
