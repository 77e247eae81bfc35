"""The search that options of the command line ask for."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.cost import CostAssumptions
from vlmplan.gpu_choice import parse_gpu_choice
from vlmplan.hardware import Pricing
from vlmplan.request import fixed_fields, inter_node_rate, length_notes, num_nodes_of, samples_per_step, workload_of
from vlmplan.search import Limits, Objective, Sought
from vlmplan.search.clusters import Candidate, OfferFilter, candidates
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
    fixed = fixed_fields(given)
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
    choices = [parse_gpu_choice(text) for text in given["gpu"]]
    num_nodes, notes = num_nodes_of(given)
    found, more = candidates(catalog, choices=choices, offers=offers, num_nodes=num_nodes, today=today)
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
        notes=(*workload.model.notes, *notes, *length_notes(workload, given), *more),
    )
