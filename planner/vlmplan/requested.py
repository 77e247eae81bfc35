"""The estimate that a request asks for: on the catalog's hardware, with rehearsed activations where no family knows the
model."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.catalog import load_catalog
from vlmplan.errors import InputError
from vlmplan.gpu_choice import LOCAL
from vlmplan.hardware import Cluster
from vlmplan.recipe import Recipe
from vlmplan.request import Request, WorkloadRequest, requested_cluster, told_with_its_file
from vlmplan.workload import ModelFiles

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate


def requested_estimate(request: Request, catalog_files: tuple[Path, ...]) -> tuple["Estimate", list[str]]:
    """The estimate of a request, and sentences about the hardware that the user should see with it."""
    machine = requested_cluster(request.hardware, load_catalog(catalog_files))
    with told_with_its_file(request):
        return _estimated(request, machine)


def _estimated(request: Request, machine: tuple[Cluster, list[str]]) -> tuple["Estimate", list[str]]:
    """The same on the request's ``machine``. Where that is not there, nobody waits for what is imported here."""
    from vlmplan.estimation import estimate, estimate_with_sizes
    from vlmplan.models.tree import ProbedModelFiles
    from vlmplan.request.setup import requested_setup

    model = request.model_files
    if isinstance(model, ProbedModelFiles):
        from vlmplan.rehearsal.images import with_images
        from vlmplan.rehearsal.layers import with_kept_layers

        model = with_images(with_kept_layers(model), request.workload)
    asked = requested_setup(request, machine, model)
    run = estimate if asked.ds_config is not None else estimate_with_sizes
    found = run(asked.workload, asked.recipe, asked.cluster)
    if found.engine is not None and found.engine.problem is not None:
        raise InputError(found.engine.problem)
    if isinstance(asked.workload.model, ProbedModelFiles):
        from vlmplan.rehearsal.unknown import with_rehearsed_activations

        found = with_rehearsed_activations(found)
    return found, [*asked.notes, *disk_notes(request, found)]


def requested_recipe(request: Request, catalog_files: tuple[Path, ...]) -> Recipe:
    """The recipe of a request, before anything is estimated."""
    from vlmplan.request.setup import requested_setup

    machine = requested_cluster(request.hardware, load_catalog(catalog_files))
    with told_with_its_file(request):
        return requested_setup(request, machine, request.model_files).recipe


def searched_model(request: Request) -> ModelFiles:
    """The model of a request for many setups."""
    return model_of_many_setups(request.model_files, request.workload)


def model_of_many_setups(model: ModelFiles, samples: WorkloadRequest) -> ModelFiles:
    """The model with what rehearsals have found of its layers, and of its images, where it has no family."""
    from vlmplan.models.tree import ProbedModelFiles

    if not isinstance(model, ProbedModelFiles):
        return model
    from vlmplan.rehearsal.images import with_images
    from vlmplan.rehearsal.layers import with_needed_layers

    return with_images(with_needed_layers(model), samples)


def disk_notes(request: Request, found: "Estimate") -> list[str]:
    """Notes that the output folder has no room for the run: by ``--disk``, or by this machine's file system where the
    run is planned for this machine."""
    room, whose = request.hardware.disk_bytes, "--disk"
    if room is None and _is_here(request):
        from vlmplan.machine.host import free_bytes_at

        folder = "." if request.configured is None else request.configured.config.output_dir or "."
        with suppress(RuntimeError):  # a home that nobody has
            room, whose = free_bytes_at(Path(folder).expanduser()), "this machine"
    if room is None:
        return []
    from vlmplan.estimation import disk_caveat

    note = disk_caveat(found, room, whose)
    return [] if note is None else [note]


def _is_here(request: Request) -> bool:
    """Whether it is planned for this machine's GPUs."""
    gpus = request.hardware.gpus
    return not gpus or gpus[0].name.casefold() == LOCAL
