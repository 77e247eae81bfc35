"""The estimate that a request asks for: on the catalog's hardware, with rehearsed activations where no family knows the
model."""

from pathlib import Path

from vlmplan.catalog import load_catalog
from vlmplan.estimation import Estimate, estimate, estimate_with_sizes
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.request import Request, requested_cluster, requested_setup


def requested_estimate(request: Request, catalog_files: tuple[Path, ...]) -> tuple[Estimate, list[str]]:
    """The estimate of a request, and sentences about the hardware that the user should see with it."""
    machine = requested_cluster(request.hardware, load_catalog(catalog_files))
    asked = requested_setup(request, machine, request.model_files)
    run = estimate if asked.ds_config is not None else estimate_with_sizes
    found = run(asked.workload, asked.recipe, asked.cluster)
    if isinstance(asked.workload.model, ProbedModelFiles):
        from vlmplan.rehearsal.unknown import with_rehearsed_activations

        found = with_rehearsed_activations(found)
    return found, list(asked.notes)
