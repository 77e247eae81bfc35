"""What a plan holds, and its JSON."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from vlmplan.deepspeed_config import NEVER_PLANNED, merged_recipe, settings_from_ds_config
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.files.json_reader import JsonDict, shown
from vlmplan.files.record_json import record_json
from vlmplan.recipe import Recipe, engine_name
from vlmplan.recipe.choices import Offload
from vlmplan.run.saving import RunDisk, Saving, run_disk
from vlmplan.versions import CHECKED_VERSIONS, VLMPLAN_VERSION
from vlmplan.workload import Workload

SCHEMA = "vlmplan.plan/1"
ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""What ``Recipe.expandable_segments`` means on a GPU: on AMD's with ROCm 7.0 or later (torch 2.13,
``c10/cuda/CUDAAllocatorConfig.h``)."""
CPU_ENVIRONMENT = {"DS_ACCELERATOR": "cpu"}
ENVIRONMENT_VARIABLES = (*ENVIRONMENT, *CPU_ENVIRONMENT)
PLAIN_VALUE = re.compile(r"[A-Za-z0-9_:.,-]+")
VENDORS = ("nvidia", "amd", "cpu")
VERDICTS = ("fits", "tight", "does_not_fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHardware:
    """Equal nodes of equal cards. ``usable_bytes`` is what a process can get of one; ``inter_node_bytes_per_second`` is
    what the user says of the network between several nodes.

    ``calibrated_on``: the day of the calibration that the plan counts with, an ISO date; None for one that counts with
    none, because the user wants none where it does not use one (``uses_calibration``).
    """

    gpu_id: str
    gpu_name: str
    vendor: str
    gpus_per_node: int
    num_nodes: int
    usable_bytes: int
    host_ram_bytes: int | None = None
    inter_node_bytes_per_second: float | None = None
    uses_calibration: bool = True
    calibrated_on: str | None = None

    @property
    def num_gpus(self) -> int:
        return self.gpus_per_node * self.num_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOffer:
    """A priced node. ``usd_per_hour`` is of one node; ``as_of`` an ISO date.

    ``save_every_steps``: optimizer steps between checkpoints at which interruptions cost least; None for a machine that
    stays.
    """

    provider: str
    usd_per_hour: float
    pricing: str
    sku: str | None = None
    region: str | None = None
    as_of: str | None = None
    source: str | None = None
    save_every_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPhase:
    name: str
    resident_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What the estimate says of the fullest GPU, its host, the disk and the time. ``usd`` is for the whole run.

    ``evaluation_seconds`` are those of all evaluations; None where they are not known, 0 where there are none.
    """

    verdict: str
    peak_phase: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_device_bytes: int
    components_at_peak: Mapping[str, int] = field(hash=False)
    phases: tuple[ExpectedPhase, ...]
    host_bytes_per_node: int
    checkpoint_bytes: int
    export_bytes: int
    nvme_swap_bytes: int
    flops_per_step: int
    num_steps: int
    step_seconds: float | None = None
    usd: float | None = None
    resume_peak_bytes: int | None = None
    """Of tensors on the fullest GPU while a run goes on from a checkpoint; None in plans that do not say."""
    resume_host_bytes: int | None = None
    """Of each host meanwhile."""
    evaluation_seconds: float | None = 0.0
    reserved_with_room_bytes: int | None = None
    """What torch reserves on a GPU with room; None in plans that do not say."""

    @property
    def shown_reserved_bytes(self) -> int:
        """What a run on a GPU with room is expected to reserve."""
        known = self.reserved_with_room_bytes
        return self.peak_reserved_bytes if known is None else known

    @property
    def shown_device_bytes(self) -> int:
        """What nvidia-smi is expected to show of it: more than is needed where expandable segments keep pages."""
        return self.peak_device_bytes + self.shown_reserved_bytes - self.peak_reserved_bytes

    @property
    def run_seconds(self) -> float | None:
        """Seconds of all steps, and of all evaluations where those are known."""
        if self.step_seconds is None:
            return None
        return self.step_seconds * self.num_steps + (self.evaluation_seconds or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the trainer needs.

    Raises InputError if ds_config and recipe say different things, or for environment variables of no known use: a
    plan may come from somebody else.
    """

    workload: Workload
    recipe: Recipe
    hardware: PlannedHardware
    expected: Expectation
    num_params: int
    num_trainable_params: int
    ds_config: Mapping[str, Any] | None = field(default=None, hash=False)
    offer: PlannedOffer | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    versions: Mapping[str, str] = field(default_factory=lambda: dict(CHECKED_VERSIONS), hash=False)
    vlmplan_version: str = VLMPLAN_VERSION

    def __post_init__(self) -> None:
        if (self.ds_config is None) is self.recipe.uses_deepspeed:
            needs = "needs a ds_config" if self.recipe.uses_deepspeed else "has no ds_config"
            name = engine_name(self.recipe, self.hardware.num_gpus)
            raise InputError(f"the plan's recipe ({name}) {needs}")
        for name, value in self.environment.items():
            if name not in ENVIRONMENT_VARIABLES:
                raise UnknownNameError("environment variable", name, ENVIRONMENT_VARIABLES, "a plan sets no others")
            if not PLAIN_VALUE.fullmatch(value):
                raise InputError(
                    f"the plan's environment sets {name} to {shown(value)}; letters, digits and _:.,- only"
                )
        if self.ds_config is not None:
            _check_agreement(self.ds_config, self.recipe, self.hardware.num_gpus)

    @property
    def has_ranks(self) -> bool:
        """Whether processes have to find each other: DeepSpeed's launcher starts them, one on each GPU."""
        return self.recipe.casts_weights or self.hardware.num_gpus > 1

    @property
    def samples_per_step(self) -> int:
        return self.recipe.samples_per_step(self.hardware.num_gpus)

    @property
    def saving(self) -> Saving:
        """The bundled trainer's checkpoints of this plan, where no option of a run says otherwise."""
        evaluation = self.recipe.evaluation
        return Saving(keeps_best=evaluation is not None and evaluation.keeps_best)

    def run_disk(self, saving: Saving) -> RunDisk:
        """What the whole run has in its output folder, saved like that."""
        expected = self.expected
        return run_disk(
            saving,
            checkpoint_bytes=expected.checkpoint_bytes,
            result_bytes=expected.export_bytes,
            num_steps=expected.num_steps,
            epochs=self.workload.epochs,
            run_seconds=expected.run_seconds,
        )

    def seconds_of(self, num_steps: int, whole_steps: int | None = None) -> float | None:
        """Seconds of a run that ends after ``num_steps``, with its part of the evaluations; ``whole_steps`` as of
        ``num_evaluations_in``."""
        if self.expected.step_seconds is None:
            return None
        evaluating = self.num_evaluations_in(num_steps, whole_steps) * (self.seconds_per_evaluation or 0.0)
        return self.expected.step_seconds * num_steps + evaluating

    def num_evaluations_in(self, num_steps: int, whole_steps: int | None = None) -> int:
        """Evaluations of a run that ends after ``num_steps`` of ``whole_steps``, those of all epochs as its trainer
        counts them; None: as the plan does."""
        evaluation = self.recipe.evaluation
        if evaluation is None:
            return 0
        return evaluation.num_in(num_steps, self.workload.epochs * num_steps / (whole_steps or self.expected.num_steps))

    @property
    def seconds_per_evaluation(self) -> float | None:
        """Seconds of one evaluation; None where there is none, or they are not known."""
        count = self.num_evaluations_in(self.expected.num_steps)
        return self.expected.evaluation_seconds / count if count and self.expected.evaluation_seconds else None

    @property
    def model_source(self) -> str:
        """The Hugging Face id or path from which the trainer loads the model."""
        return self.workload.model.hub_id or self.workload.model.id

    def as_json(self) -> JsonDict:
        model = self.workload.model
        return {
            "schema": SCHEMA,
            "vlmplan_version": self.vlmplan_version,
            "model": {
                "id": model.id,
                "hub_id": model.hub_id,
                "num_params": self.num_params,
                "num_trainable_params": self.num_trainable_params,
                "notes": list(model.notes),
                "not_counted": list(model.not_counted),
                "config": dict(model.config),
                "preprocessor": None if model.preprocessor is None else dict(model.preprocessor),
            },
            "workload": {name: getattr(self.workload, name) for name in WORKLOAD_FIELDS},
            "hardware": record_json(self.hardware),
            "offer": None if self.offer is None else record_json(self.offer),
            "recipe": self.recipe.as_json(),
            "ds_config": None if self.ds_config is None else dict(self.ds_config),
            "expected": record_json(self.expected)
            | {"phases": [record_json(phase) for phase in self.expected.phases]}
            | {"components_at_peak": dict(self.expected.components_at_peak)},
            "environment": dict(self.environment),
            "versions": dict(self.versions),
        }


OF_OTHER_TRAINERS = ("saving", "loader_workers")
WORKLOAD_FIELDS = tuple(item.name for item in fields(Workload) if item.name not in ("model", *OF_OTHER_TRAINERS))
"""Those that a plan keeps: its checkpoints are the trainer's options."""


def _check_agreement(ds_config: Mapping[str, Any], recipe: Recipe, num_gpus: int) -> None:
    """Refuse a ds_config that says something else than the recipe: one of them was edited; and what no plan has."""
    for name in NEVER_PLANNED:
        if name in ds_config:
            raise InputError(
                f"the plan's ds_config has {name}, which vlmplan writes into no plan: by it DeepSpeed writes to other "
                f"places, asks servers or runs other code; take it out (launch --monitor writes curves)"
            )
    said = settings_from_ds_config(ds_config, name="the plan's ds_config")
    # What the file leaves out is off; the optimizer is the trainer's, and bitsandbytes' have no name there.
    silent = recipe.with_changes(
        offload_optimizer=Offload.NONE, offload_params=Offload.NONE, hpz=1, sequence_parallel=1
    )
    merged = merged_recipe(said, silent, num_gpus=num_gpus)
    merged = merged.with_changes(optimizer=recipe.optimizer, nvme_path=recipe.nvme_path)
    if merged.scatters_gradients == recipe.scatters_gradients:  # Muon never does at stage 3
        merged = merged.with_changes(zero=replace(merged.zero, reduce_scatter=recipe.zero.reduce_scatter))
    for name, mine, theirs in _differences(recipe.as_json(), merged.as_json()):
        raise InputError(f"the plan's ds_config means {name} {shown(theirs)}, its recipe {shown(mine)}")


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The key and both values wherever two objects of the same keys differ."""
    for name, value in mine.items():
        if isinstance(value, Mapping) and isinstance(theirs[name], Mapping):
            yield from _differences(cast(JsonDict, value), theirs[name], f"{path}{name}.")
        elif value != theirs[name]:
            yield f"{path}{name}", value, theirs[name]
