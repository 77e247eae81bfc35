"""Going on with a run: what it was asked for, and the options that ask for another plan of it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.changes.kinds import without_plain_options
from vlmplan.files.json_reader import JsonDict
from vlmplan.hardware import Cluster
from vlmplan.launch.plan_options import gpu_of, model_of, request_of
from vlmplan.launch.run_folder import has_checkpoint, result_in
from vlmplan.models.weights_mark import weights_mark
from vlmplan.plan import Plan
from vlmplan.recipe import PLAIN
from vlmplan.request import Options, OptionValue, Request, requested_cluster
from vlmplan.run.record import RECORD_FILE, RunRecord, no_record, read_record, record_of, resumed, said
from vlmplan.run.training import DATA_SOURCES, TrainerOptions

OF_DS_CONFIG = (
    *("zero_stage", "offload_optimizer", "offload_params", "hpz", "nvme_path", "precision", "optimizer"),
    *("micro_batch", "grad_accum", "global_batch"),
)
"""Options that ``--ds-config`` decides."""
NAMED = ("model", "gpu", "ds_config")
"""Options by which a run that goes on finds what it was planned with."""
UNPLANNED = ("inter_node_gbit",)
"""Options that change what is said of a plan's time and nothing of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What ``vlmplan launch`` was asked for beside a plan, completed by what the run in the folder was asked for.

    ``record`` is of the run that goes on. ``problems`` keep it from going on, ``notes`` do not; sentences.
    """

    trainer: TrainerOptions
    hostfile: Path | None = None
    catalog_files: tuple[Path, ...] = ()
    record: RunRecord | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    planned_with: Mapping[str, Any] | None = field(default=None, hash=False)


def launch_request(
    values: Mapping[str, Any], *, hostfile: Path | None = None, catalog_files: tuple[Path, ...] = ()
) -> LaunchRequest:
    """``values`` are those of the trainer's options that were given, None for the others.

    Raises InputError for what is not allowed, UnavailableError where a run is to go on of which nothing is known.
    """
    given = {name: value for name, value in values.items() if value is not None}
    folder = given["output_dir"]
    record = read_record(folder) if given.get("resume") else None
    if record is None:
        if given.get("resume") and not any(name in given for name in DATA_SOURCES):
            raise no_record(folder)
        trainer = TrainerOptions(**given)
        notes = tuple(_unknown_start(trainer)) if trainer.resume else ()
        return LaunchRequest(trainer=trainer, hostfile=hostfile, catalog_files=catalog_files, notes=notes)
    is_begun = result_in(folder) is not None
    found = resumed(record, given, is_begun=is_begun)
    return LaunchRequest(
        trainer=found.options,
        hostfile=hostfile or record.hostfile,
        catalog_files=catalog_files or record.catalog_files,
        record=record if is_begun else replace(record, data=None, weights=None),
        problems=found.problems,
        notes=found.changes,
        planned_with=record.planned_with,
    )


def _unknown_start(trainer: TrainerOptions) -> Iterator[str]:
    """What to say where a run goes on and nothing says what it began with."""
    folder = trainer.output_dir
    if has_checkpoint(folder):
        names = ("learning_rate", "schedule", "warmup_fraction", "weight_decay", "seed")
        values = {name: getattr(trainer, name) for name in names}
        now = ", ".join(said(name, value) for name, value in values.items())
        yield (
            f"{folder} has no {RECORD_FILE}, so the options cannot be held against those of its first start, which its "
            f"command.txt has; it goes on with {now}"
        )


def record_to_keep(launch_request: LaunchRequest, plan: Plan) -> RunRecord:
    """The record of the run that ``launch_request`` starts or goes on with."""
    before, place = launch_request.record, Path(plan.model_source)
    weights = None if before is None else before.weights
    if weights is None and place.is_absolute() and not launch_request.trainer.random_weights:
        weights = weights_mark(place)
    return record_of(
        launch_request.trainer,
        plan.recipe.method.value,
        data=None if before is None else before.data,
        weights=weights,
        planned_with=launch_request.planned_with,
        hostfile=None if launch_request.hostfile is None else launch_request.hostfile.absolute(),
        catalog_files=tuple(path.absolute() for path in launch_request.catalog_files),
    )


# -- the plan --------------------------------------------------------------------------------------------------------


def kept_options(given: Options) -> dict[str, OptionValue]:
    """The options of a plan that were given, so that they mean the same from any folder."""
    named: dict[str, OptionValue] = {name: value for name, value in given.items() if value is not None}
    is_file = {"ds_config": True, "data": True, "model": os.path.lexists(str(named.get("model")))}
    paths = [name for name in named if is_file.get(name, False)]
    return named | {name: os.path.abspath(str(named[name])) for name in paths}


def asks_for_another_plan(given: Options, record: RunRecord | None) -> bool:
    """Whether options of the plan were given that the run was not planned with."""
    before = _planned_with(record)
    return any(before.get(name) != value for name, value in kept_options(given).items() if name not in UNPLANNED)


def _planned_with(record: RunRecord | None) -> JsonDict:
    return {} if record is None else dict(record.planned_with or {})


def request_to_go_on(plan: Plan, record: RunRecord | None, given: Request, catalog: Catalog) -> Request:
    """The request for the plan to go on with: what was ``given``, and for the rest what ``plan`` has.

    A step takes as many samples as before, where micro batches can make that up. Raises UnavailableError where the plan
    came from a file, and its model or hardware has no name here.
    """
    before = _planned_with(record)
    named = given.with_options({name: before.get(name) for name in NAMED if given.option(name) is None})
    model = named.model or model_of(plan)[0]
    gpu = str(named.hardware.gpus[0]) if named.hardware.gpus else gpu_of(plan, catalog)
    base = request_of(plan, model=model, gpu=gpu)
    if given.recipe.zero_stage not in (None, PLAIN, base.recipe.zero_stage):  # settings of PyTorch alone are not asked
        base = base.with_options(without_plain_options(base.recipe.weight_dtype))
    if named.ds_config is not None:
        base = replace(base.with_options(dict.fromkeys(OF_DS_CONFIG)), ds_config=named.ds_config)
    cluster, _ = requested_cluster(given.completed(base).hardware, catalog)
    if cluster.num_gpus == 1:
        base = base.with_options({"gradient_as_bucket_view": None})  # of DDP, which the plan may have
    if cluster.num_nodes == 1:
        base = base.with_options({"inter_node_gbit": None})
    if named.ds_config is None and given.recipe.grad_accum is None:
        if given.workload.global_batch is None:
            base = base.with_options(_same_samples_per_step(plan, given, cluster))
        else:
            base = base.with_options({"grad_accum": None})  # it follows
    return given.completed(base)


def _same_samples_per_step(plan: Plan, given: Request, cluster: Cluster) -> Options:
    """Accumulation with which a step on ``cluster`` takes as many samples as before. Where none makes that up, it takes
    another number, which ``plan_changes`` refuses."""
    per_pass = cluster.num_gpus * (given.recipe.micro_batch or plan.recipe.micro_batch)
    is_same = per_pass > 0 and plan.samples_per_step % per_pass == 0
    steps: Options = {"grad_accum": plan.samples_per_step // per_pass} if is_same else {}
    return {**steps, "global_batch": None}
