"""The plan of an estimate."""

from dataclasses import replace
from typing import TYPE_CHECKING

from vlmplan.deepspeed_config import deepspeed_config
from vlmplan.plan.record import (
    CPU_ENVIRONMENT,
    ENVIRONMENT,
    Expectation,
    ExpectedPhase,
    Plan,
    PlannedHardware,
    PlannedOffer,
)
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload
from vlmplan.run.saving import Saving
from vlmplan.versions import checked_versions

if TYPE_CHECKING:
    from vlmplan.deepspeed_config import DsConfig
    from vlmplan.estimation import Estimate
    from vlmplan.hardware import Cluster, Offer


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
    return Plan(
        workload=replace(estimate.workload, saving=Saving(), loader_workers=0, global_batch=_global_batch(estimate)),
        recipe=recipe,
        hardware=PlannedHardware(
            gpu_id=node.gpu.id,
            gpu_name=node.gpu.name,
            vendor=node.gpu.vendor.value,
            gpus_per_node=node.num_gpus,
            num_nodes=estimate.cluster.num_nodes,
            usable_bytes=estimate.device.usable_bytes,
            host_ram_bytes=node.host_ram_bytes,
            inter_node_bytes_per_second=_network(estimate.cluster),
            uses_calibration=not node.gpu.leaves_out_calibration,
            calibrated_on=None if node.gpu.calibration is None else node.gpu.calibration.measured_on.isoformat(),
        ),
        expected=_expectation(estimate, usd),
        num_params=estimate.num_params,
        num_trainable_params=estimate.num_trainable_params,
        ds_config=deepspeed_config(recipe, num_gpus=num_gpus, base=base, largest_parameter=largest_parameter(estimate)),
        offer=None if offer is None else _planned_offer(offer, save_every_steps),
        environment=_environment(recipe, node.gpu.vendor.value),
        versions=checked_versions(recipe),
    )


def _global_batch(estimate: "Estimate") -> int | None:
    """What a step has, where samples of a step were asked for: a search takes more where GPUs cannot share them."""
    return None if estimate.workload.global_batch is None else estimate.samples_per_step


def _network(cluster: "Cluster") -> float | None:
    """The rate between machines, where there are several."""
    return cluster.inter_node_bytes_per_second if cluster.num_nodes > 1 else None


def _environment(recipe: Recipe, vendor: str) -> dict[str, str]:
    if vendor == "cpu":
        return dict(CPU_ENVIRONMENT)
    return dict(ENVIRONMENT) if recipe.expandable_segments else {}


def largest_parameter(estimate: "Estimate") -> int:
    """Elements of the largest weight, which buffers for NVMe have to hold; 0 where there are none."""
    if estimate.recipe.offload_params is not Offload.NVME:
        return 0
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
        reserved_with_room_bytes=estimate.reserved_with_room_bytes,
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
        resume_peak_bytes=estimate.resume.phase.peak.total,
        resume_host_bytes=estimate.resume_host_bytes,
        evaluation_seconds=estimate.evaluation_seconds,
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
