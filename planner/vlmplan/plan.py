"""A plan: what is trained, on what, how, and what that will take. The contract between recommend, rehearse and launch.

Schema ``vlmplan.plan/1``. ``plan_from_json(plan.as_json())`` is the plan again. Bytes are int, times are seconds.

    model       id, hub_id, config.json and preprocessor_config.json as planned, parameter counts
    workload    shape and number of samples
    hardware    card, GPUs per node, nodes
    offer       what it costs, or null
    recipe      every setting, resolved
    ds_config   DeepSpeed's, all numbers; null for plain PyTorch
    expected    phases, peaks, seconds
    environment variables that the run needs
    versions    of the libraries that the estimate was checked with
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmplan.deepspeed_config import deepspeed_config, merged_recipe, settings_from_ds_config
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.files import write_atomically
from vlmplan.json_reader import JsonObject, read_json_object, shown
from vlmplan.recipe import Offload, Recipe, recipe_from_json
from vlmplan.versions import CHECKED_VERSIONS, VLMPLAN_VERSION
from vlmplan.workload import ModelFiles, Workload

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig
    from vlmplan.estimate import Estimate
    from vlmplan.hardware import Offer

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
    """Equal nodes of equal cards. ``usable_bytes`` is what a process can get of one."""

    gpu_id: str
    gpu_name: str
    vendor: str
    gpus_per_node: int
    num_nodes: int
    usable_bytes: int
    host_ram_bytes: int | None = None

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
    """What the estimate says of the fullest GPU, its host, the disk and the time. ``usd`` is for the whole run."""

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

    @property
    def run_seconds(self) -> float | None:
        return None if self.step_seconds is None else self.step_seconds * self.num_steps


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
            raise InputError(f"the plan's recipe ({stage_text(self.recipe)}) {needs}")
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
    def samples_per_step(self) -> int:
        return self.recipe.micro_batch * self.recipe.grad_accum * self.hardware.num_gpus

    @property
    def model_source(self) -> str:
        """Where the trainer loads the model: a Hugging Face id or a path."""
        return self.workload.model.hub_id or self.workload.model.id

    def as_json(self) -> dict[str, Any]:
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
            "hardware": _plain_json(self.hardware),
            "offer": None if self.offer is None else _plain_json(self.offer),
            "recipe": self.recipe.as_json(),
            "ds_config": None if self.ds_config is None else dict(self.ds_config),
            "expected": _plain_json(self.expected)
            | {"phases": [_plain_json(phase) for phase in self.expected.phases]}
            | {"components_at_peak": dict(self.expected.components_at_peak)},
            "environment": dict(self.environment),
            "versions": dict(self.versions),
        }


WORKLOAD_FIELDS = tuple(item.name for item in fields(Workload) if item.name != "model")


def _plain_json(item: Any) -> dict[str, Any]:
    return {entry.name: getattr(item, entry.name) for entry in fields(item)}


def stage_text(recipe: Recipe) -> str:
    """``ZeRO 2`` or ``plain PyTorch``."""
    return "plain PyTorch" if recipe.zero_stage is None else f"ZeRO {recipe.zero_stage}"


def _check_agreement(ds_config: Mapping[str, Any], recipe: Recipe, num_gpus: int) -> None:
    """Refuse a ds_config that says something else than the recipe: one of them was edited."""
    said = settings_from_ds_config(ds_config, name="the plan's ds_config")
    # What the file leaves out is off; the optimizer is the trainer's, and bitsandbytes' have no name there.
    silent = recipe.with_changes(offload_optimizer=Offload.NONE, offload_params=Offload.NONE, hpz=1)
    merged = merged_recipe(said, silent, num_gpus=num_gpus)
    merged = merged.with_changes(optimizer=recipe.optimizer, nvme_path=recipe.nvme_path)
    mine, theirs = recipe.as_json(), merged.as_json()
    for name, value in mine.items():
        if value != theirs[name]:
            raise InputError(f"the plan's ds_config means {name} {shown(theirs[name])}, its recipe {shown(value)}")


def plan_from_estimate(
    estimate: "Estimate",
    *,
    offer: "Offer | None" = None,
    base: "DsConfig | None" = None,
    usd: float | None = None,
    save_every_steps: int | None = None,
) -> Plan:
    """The plan that trains what was estimated. ``base`` is the user's own ds_config, whose other keys are kept;
    ``save_every_steps`` is kept where the offer may be taken away."""
    node, recipe = estimate.cluster.node, estimate.recipe
    num_gpus = estimate.cluster.num_gpus
    largest = _largest_parameter(estimate) if recipe.offload_params is Offload.NVME else 0
    return Plan(
        workload=estimate.workload,
        recipe=recipe,
        hardware=PlannedHardware(
            gpu_id=node.gpu.id,
            gpu_name=node.gpu.name,
            vendor=node.gpu.vendor.value,
            gpus_per_node=node.num_gpus,
            num_nodes=estimate.cluster.num_nodes,
            usable_bytes=estimate.device.usable_bytes,
            host_ram_bytes=node.host_ram_bytes,
        ),
        expected=_expectation(estimate, usd),
        num_params=estimate.num_params,
        num_trainable_params=estimate.num_trainable_params,
        ds_config=deepspeed_config(recipe, num_gpus=num_gpus, base=base, largest_parameter=largest),
        offer=None if offer is None else _planned_offer(offer, save_every_steps),
        environment=_environment(recipe, node.gpu.vendor.value),
    )


def _environment(recipe: Recipe, vendor: str) -> dict[str, str]:
    if vendor == "cpu":
        return dict(CPU_ENVIRONMENT)
    return dict(ENVIRONMENT) if recipe.expandable_segments else {}


def _largest_parameter(estimate: "Estimate") -> int:
    from vlmplan.architecture.prepare import prepared_model
    from vlmplan.models.tree import model_tree

    model = prepared_model(model_tree(estimate.workload.model), estimate.recipe)
    return max(entry.parameter.numel for entry in model.parameters())


def _expectation(estimate: "Estimate", usd: float | None) -> Expectation:
    peak = estimate.timeline.peak_phase
    return Expectation(
        verdict=estimate.verdict.value,
        peak_phase=peak.name,
        peak_allocated_bytes=estimate.peak_allocated_bytes,
        peak_reserved_bytes=estimate.device.reserved_bytes,
        peak_device_bytes=estimate.device.device_bytes,
        components_at_peak=peak.peak.as_json(),
        phases=tuple(ExpectedPhase(**phase.as_json()) for phase in estimate.timeline.phases),
        host_bytes_per_node=estimate.host.peak_bytes,
        checkpoint_bytes=estimate.disk.checkpoint_bytes,
        export_bytes=estimate.disk.export_bytes,
        nvme_swap_bytes=estimate.disk.nvme_swap_bytes,
        flops_per_step=estimate.flops_per_step,
        num_steps=estimate.num_steps,
        step_seconds=estimate.step_seconds,
        usd=usd,
    )


def _planned_offer(offer: "Offer", save_every_steps: int | None) -> PlannedOffer:
    return PlannedOffer(
        provider=offer.provider,
        usd_per_hour=offer.usd_per_hour,
        pricing=offer.pricing.value,
        sku=offer.sku,
        region=offer.region,
        as_of=None if offer.as_of is None else offer.as_of.isoformat(),
        source=offer.source,
        save_every_steps=save_every_steps if offer.pricing.value == "interruptible" else None,
    )


def plan_text(plan: Plan) -> str:
    """plan.json."""
    return json.dumps(plan.as_json(), indent=2, ensure_ascii=False) + "\n"


def write_plan(plan: Plan, path: Path, *, force: bool = False) -> None:
    """Write plan.json whole or not at all. Raises InputError if it exists and ``force`` is off."""
    write_atomically(path, plan_text(plan), force=force)


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises UnavailableError if it cannot be read, InputError if it is not a sound plan."""
    return plan_from_json(read_json_object(path), source=str(path))


def plan_from_json(values: Mapping[str, Any], *, source: str = "plan") -> Plan:
    """The inverse of ``Plan.as_json``; ``source`` names the file in errors."""
    top = JsonObject(values, source=source)
    if "schema" not in top:
        raise InputError(f"{source} has no schema, so it is not a plan; {SCHEMA} is needed")
    if top.raw("schema") != SCHEMA:
        top.refuse("schema", f"{SCHEMA}, the only one that vlmplan {VLMPLAN_VERSION} reads,")
    model = top.object("model")
    plan = Plan(
        workload=_workload(top.object("workload"), model),
        recipe=recipe_from_json(top.mapping("recipe"), source=f"{source}: recipe"),
        hardware=_hardware(top.object("hardware")),
        expected=_expected(top.object("expected")),
        num_params=model.count("num_params", least=1),
        num_trainable_params=model.count("num_trainable_params", least=1),
        ds_config=top.maybe("ds_config", top.mapping),
        offer=_offer(top),
        environment=_texts(top.object("environment")),
        versions=_texts(top.object("versions")),
        vlmplan_version=top.text("vlmplan_version"),
    )
    model.close()
    top.close()
    return plan


def _workload(section: JsonObject, model: JsonObject) -> Workload:
    counts = ("seq_len", "images_per_sample", "image_width", "image_height", "num_samples")
    workload = Workload(
        model=ModelFiles(
            id=model.text("id"),
            config=model.mapping("config"),
            preprocessor=model.maybe("preprocessor", model.mapping),
            hub_id=model.maybe("hub_id", model.text),
            notes=model.texts("notes"),
            not_counted=model.texts("not_counted") if "not_counted" in model else (),
        ),
        **{name: section.count(name) for name in counts},
        epochs=section.number("epochs"),
        global_batch=section.maybe("global_batch", section.count),
    )
    section.close()
    return workload


def _hardware(section: JsonObject) -> PlannedHardware:
    hardware = PlannedHardware(
        gpu_id=section.text("gpu_id"),
        gpu_name=section.text("gpu_name"),
        vendor=section.choice("vendor", VENDORS),
        gpus_per_node=section.count("gpus_per_node", least=1),
        num_nodes=section.count("num_nodes", least=1),
        usable_bytes=section.count("usable_bytes"),
        host_ram_bytes=section.maybe("host_ram_bytes", section.count),
    )
    section.close()
    return hardware


def _offer(top: JsonObject) -> PlannedOffer | None:
    section = top.maybe("offer", top.object)
    if section is None:
        return None
    offer = PlannedOffer(
        provider=section.text("provider"),
        usd_per_hour=section.number("usd_per_hour"),
        pricing=section.text("pricing"),
        **{name: section.maybe(name, section.text) for name in ("sku", "region", "as_of", "source")},
        save_every_steps=section.maybe("save_every_steps", section.count),
    )
    section.close()
    return offer


def _expected(section: JsonObject) -> Expectation:
    counts = [item.name for item in fields(Expectation) if item.type == "int" or item.type is int]
    components = section.object("components_at_peak")
    phases = [
        ExpectedPhase(
            name=phase.text("name"),
            resident_bytes=phase.count("resident_bytes"),
            peak_bytes=phase.count("peak_bytes"),
        )
        for phase in section.objects("phases")
    ]
    expected = Expectation(
        verdict=section.choice("verdict", VERDICTS),
        peak_phase=section.text("peak_phase"),
        components_at_peak={name: components.count(name) for name in components.values},
        phases=tuple(phases),
        step_seconds=section.maybe("step_seconds", section.number),
        usd=section.maybe("usd", section.number),
        **{name: section.count(name) for name in counts},
    )
    section.close()
    return expected


def _texts(section: JsonObject) -> dict[str, str]:
    return {name: section.text(name) for name in section.values}
