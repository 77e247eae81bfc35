"""A plan's estimate as this version makes it: of its workload and recipe on its hardware as the catalog knows it."""

from dataclasses import replace
from pathlib import Path

from vlmplan.catalog import load_catalog
from vlmplan.estimation import Estimate, estimate
from vlmplan.launch.plan_options import gpu_of, hardware_of
from vlmplan.models import described
from vlmplan.plan import Plan
from vlmplan.rehearsal.images import with_images_of
from vlmplan.rehearsal.layers import with_kept_layers
from vlmplan.rehearsal.unknown import with_rehearsed_activations
from vlmplan.request import requested_cluster


def estimate_of(plan: Plan, catalog_files: tuple[Path, ...]) -> Estimate:
    """What this version says of a plan. Raises UnavailableError where its hardware is not known here."""
    catalog = load_catalog(catalog_files)
    cluster, _ = requested_cluster(hardware_of(plan, gpu_of(plan, catalog)), catalog)
    model = plan.workload.model
    # what the samples leave out is the plan's: --images-per-sample 0 may have said that there are no images
    found = with_images_of(with_kept_layers(described(model, model.config)), plan.workload)
    model = replace(found, not_counted=model.not_counted)
    workload = replace(plan.workload, model=model)
    return with_rehearsed_activations(estimate(workload, plan.recipe, cluster))
