"""The estimate that options ask for: on the catalog's hardware, with rehearsed activations where no family knows the
model."""

from pathlib import Path
from typing import Any

from vlmplan.catalog import load_catalog
from vlmplan.estimate import Estimate, estimate, estimate_with_sizes
from vlmplan.models import find_model
from vlmplan.models.tree import ProbedModelFiles
from vlmplan.request import ds_config_of, requested_cluster, requested_setup


def requested_estimate(given: dict[str, Any], catalog_files: tuple[Path, ...]) -> tuple[Estimate, list[str]]:
    """The estimate that the options ask for, and sentences about the hardware that the user should see with it."""
    machine = requested_cluster(given, load_catalog(catalog_files))
    asked = requested_setup(given, machine, find_model(given["model"]), ds_config_of(given))
    run = estimate if asked.ds_config is not None else estimate_with_sizes
    found = run(asked.workload, asked.recipe, asked.cluster)
    if isinstance(asked.workload.model, ProbedModelFiles):
        from vlmplan.rehearsal.unknown import with_rehearsed_activations

        found = with_rehearsed_activations(found)
    return found, list(asked.notes)
