"""Going on with a run: what it was asked for, and the options that ask for another plan of it."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlmplan.catalog import Catalog
from vlmplan.launch.plan_options import gpu_of, model_of, options_of
from vlmplan.launch.run_folder import has_checkpoint, result_in
from vlmplan.plan import Plan
from vlmplan.request import requested_cluster
from vlmplan.run_record import RECORD_FILE, RunRecord, no_record, read_record, record_of, resumed, said
from vlmplan.training import DATA_SOURCES, TrainerOptions

OF_DS_CONFIG = (
    *("zero_stage", "offload_optimizer", "offload_params", "hpz", "nvme_path", "precision", "optimizer"),
    *("micro_batch", "grad_accum", "global_batch"),
)
"""Options that ``--ds-config`` decides."""
UNPLANNED = ("inter_node_gbit",)
"""Options that change what is said of a plan's time and nothing of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
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


def asked_of(values: Mapping[str, Any], *, hostfile: Path | None = None, catalog_files: tuple[Path, ...] = ()) -> Asked:
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
        return Asked(trainer=trainer, hostfile=hostfile, catalog_files=catalog_files, notes=notes)
    is_begun = result_in(folder) is not None
    found = resumed(record, given, is_begun=is_begun)
    return Asked(
        trainer=found.options,
        hostfile=hostfile or record.hostfile,
        catalog_files=catalog_files or record.catalog_files,
        record=record if is_begun else dataclasses.replace(record, data=None),
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


def record_to_keep(asked: Asked, plan: Plan) -> RunRecord:
    """The record of the run that ``asked`` starts or goes on with."""
    return record_of(
        asked.trainer,
        plan.recipe.method.value,
        data=None if asked.record is None else asked.record.data,
        planned_with=asked.planned_with,
        hostfile=None if asked.hostfile is None else asked.hostfile.absolute(),
        catalog_files=tuple(path.absolute() for path in asked.catalog_files),
    )


# -- the plan --------------------------------------------------------------------------------------------------------


def kept_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a plan that were given, so that they mean the same from any folder."""
    asked = {name: value for name, value in given.items() if value is not None}
    paths = [name for name in asked if name == "ds_config" or (name == "model" and os.path.lexists(asked[name]))]
    return asked | {name: os.path.abspath(asked[name]) for name in paths}


def asks_for_another_plan(given: Mapping[str, Any], record: RunRecord | None) -> bool:
    """Whether options of the plan were given that the run was not planned with."""
    before = _planned_with(record)
    return any(before.get(name) != value for name, value in kept_options(given).items() if name not in UNPLANNED)


def _planned_with(record: RunRecord | None) -> dict[str, Any]:
    return {} if record is None else dict(record.planned_with or {})


def options_to_go_on(
    plan: Plan, record: RunRecord | None, given: Mapping[str, Any], catalog: Catalog
) -> dict[str, Any]:
    """The options for the plan to go on with: those that were ``given``, and for the rest what ``plan`` has.

    A step takes as many samples as before, where micro batches can make that up. Raises UnavailableError where the plan
    came from a file, and its model or hardware has no name here.
    """
    asked, before = kept_options(given), _planned_with(record)
    named = before | asked
    model = named["model"] if "model" in named else model_of(plan)[0]
    gpu = named["gpu"] if "gpu" in named else gpu_of(plan, catalog)
    base = options_of(plan, model=model, gpu=gpu)
    if named.get("ds_config") is not None:
        base |= dict.fromkeys(OF_DS_CONFIG) | {"ds_config": Path(named["ds_config"])}
        asked |= {"ds_config": base["ds_config"]}
    elif not {"grad_accum", "global_batch"} & asked.keys():
        cluster, _ = requested_cluster({**base, **asked}, catalog)
        per_pass = cluster.num_gpus * (asked.get("micro_batch") or plan.recipe.micro_batch)
        if per_pass > 0 and plan.samples_per_step % per_pass == 0:
            base |= {"grad_accum": plan.samples_per_step // per_pass, "global_batch": None}
        else:  # a step takes another number of samples, which ``plan_changes`` refuses
            base["global_batch"] = None
    return {**dict.fromkeys(given), **base, **asked}
