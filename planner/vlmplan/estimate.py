"""One recipe on one cluster: memory timeline, host, disk, seconds, and whether it fits.

``Estimator`` holds what does not depend on the cluster (the prepared model and its trace), so that a search can ask
for many clusters and sizes cheaply.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from vlmplan.architecture.attention import AttentionBackend
from vlmplan.architecture.images import IMAGE_MODEL_TYPES, ImageShape, image_shape
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.errors import InputError
from vlmplan.hardware import Cluster
from vlmplan.memory.components import Components, Phase
from vlmplan.memory.disk import DiskSpace, disk_space
from vlmplan.memory.host import HostMemory, host_memory
from vlmplan.memory.overhead import CUDA_CONTEXT_BYTES, nccl_bytes, reserve_bytes, workspace_bytes
from vlmplan.memory.parameters import ParameterTable
from vlmplan.memory.timeline import Timeline, memory_timeline
from vlmplan.recipe import LossKind, Recipe
from vlmplan.throughput import StepTime, step_flops, step_time
from vlmplan.workload import Workload


class Verdict(Enum):
    """``FITS`` leaves the reserve free, ``TIGHT`` does not but stays below the usable memory."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one recipe needs on one cluster. Bytes are of the fullest GPU."""

    workload: Workload
    cluster: Cluster
    recipe: Recipe
    num_params: int
    num_trainable_params: int
    timeline: Timeline
    peak_reserved_bytes: int
    peak_device_bytes: int
    usable_bytes: int
    reserve_bytes: int
    host: HostMemory
    disk: DiskSpace
    flops_per_step: int
    step_time: StepTime | None

    @property
    def peak_allocated_bytes(self) -> int:
        return self.timeline.peak.total

    @property
    def verdict(self) -> Verdict:
        if self.host_is_short or self.peak_device_bytes > self.usable_bytes:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if self.peak_device_bytes + self.reserve_bytes <= self.usable_bytes else Verdict.TIGHT

    @property
    def host_is_short(self) -> bool:
        """Whether the host's memory is known and too small."""
        ram = self.cluster.node.host_ram_bytes
        return ram is not None and self.host.peak_bytes > ram

    @property
    def samples_per_step(self) -> int:
        return self.recipe.micro_batch * self.recipe.grad_accum * self.cluster.num_gpus

    @property
    def step_seconds(self) -> float | None:
        return None if self.step_time is None else self.step_time.total

    @property
    def samples_per_second(self) -> float | None:
        return None if self.step_seconds is None else self.samples_per_step / self.step_seconds

    @property
    def tokens_per_second(self) -> float | None:
        return None if self.samples_per_second is None else self.samples_per_second * self.workload.seq_len

    @property
    def num_steps(self) -> int:
        return max(1, -(-round(self.workload.total_samples) // self.samples_per_step))

    @property
    def run_seconds(self) -> float | None:
        return None if self.step_seconds is None else self.num_steps * self.step_seconds

    def as_json(self) -> dict[str, Any]:
        """Schema ``vlmplan.estimate/1``; integers are bytes."""
        node = self.cluster.node
        peak = self.timeline.peak_phase
        return {
            "schema": "vlmplan.estimate/1",
            "model": {
                "id": self.workload.model.id,
                "num_params": self.num_params,
                "num_trainable_params": self.num_trainable_params,
            },
            "gpu": {
                "id": node.gpu.id,
                "count": node.num_gpus,
                "num_nodes": self.cluster.num_nodes,
                "usable_bytes": self.usable_bytes,
            },
            "recipe": self.recipe.as_json() | self.workload.as_json() | {"global_batch": self.samples_per_step},
            "verdict": self.verdict.value,
            "reserve_bytes": self.reserve_bytes,
            "peak_phase": peak.name,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_reserved_bytes": self.peak_reserved_bytes,
            "peak_device_bytes": self.peak_device_bytes,
            "components_at_peak": peak.peak.as_json(),
            "phases": [phase.as_json() for phase in self.timeline.phases],
            "host_bytes_per_node": self.host.peak_bytes,
            "host_load_bytes_per_node": self.host.load_bytes,
            "host_steady_bytes_per_node": self.host.steady_bytes,
            "checkpoint_bytes": self.disk.checkpoint_bytes,
            "export_bytes": self.disk.export_bytes,
            "nvme_swap_bytes": self.disk.nvme_swap_bytes,
            "flops_per_step": self.flops_per_step,
            "step_seconds": self.step_seconds,
            "step_seconds_by_part": None if self.step_time is None else self.step_time.as_json(),
            "tokens_per_second": self.tokens_per_second,
            "samples_per_second": self.samples_per_second,
            "notes": list(self.workload.model.notes),
        }


def sample_image(workload: Workload) -> ImageShape | None:
    """What one image of the workload becomes; None for samples without images.

    Raises InputError if the model takes no images or they do not fit in the sequence.
    """
    if not workload.images_per_sample:
        return None
    model = workload.model
    if model.model_type not in IMAGE_MODEL_TYPES:
        raise InputError(f"--images-per-sample is {workload.images_per_sample}, but {model.id} takes no images")
    image = image_shape(
        model.config,
        model.preprocessor,
        width=workload.image_width,
        height=workload.image_height,
        num_images_per_sample=workload.images_per_sample,
    )
    needed = image.num_tokens * workload.images_per_sample
    if needed > workload.seq_len:
        raise InputError(
            f"--seq-len is {workload.seq_len}, but {workload.images_per_sample} image(s) of "
            f"{workload.image_width}x{workload.image_height} take {needed} tokens of {model.id}; "
            f"give at least that many tokens, or smaller or fewer images"
        )
    return image


class Estimator:
    """The part of an estimate that the cluster does not change: the prepared model and its micro batch."""

    def __init__(self, workload: Workload, recipe: Recipe, compute_capability: tuple[int, int] | None = None) -> None:
        self.workload, self.recipe = workload, recipe
        self._backend = AttentionBackend(
            implementation=recipe.attention.value, compute_capability=compute_capability or (8, 0)
        )
        self._model = prepared_model(workload.model.config, recipe)
        self.table = ParameterTable(self._model)
        self._traces: dict[int, Trace] = {}

    @cached_property
    def image(self) -> ImageShape | None:
        return sample_image(self.workload)

    def trace(self, micro_batch: int) -> Trace:
        """One micro batch of ``micro_batch`` samples."""
        if micro_batch not in self._traces:
            batch = Batch(
                micro_batch=micro_batch,
                num_tokens=self.workload.seq_len,
                images_per_sample=self.workload.images_per_sample,
                image=self.image,
            )
            tape = Tape(autocast=self.recipe.autocast)
            chunks_loss = self.recipe.loss is LossKind.CHUNKED
            self._traces[micro_batch] = self._model.run(tape, batch, self._backend, chunks_loss=chunks_loss)
        return self._traces[micro_batch]

    def timeline(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """The memory timeline; ``recipe`` may differ from the estimator's in engine, batch and sizes."""
        timeline = memory_timeline(self.table, self.trace(recipe.micro_batch), recipe, num_ranks=cluster.num_gpus)
        return _with_workspaces(timeline, workspace_bytes(cluster.node.gpu.compute_capability))

    def estimate(self, recipe: Recipe, cluster: Cluster) -> Estimate:
        trace = self.trace(recipe.micro_batch)
        timeline = self.timeline(recipe, cluster)
        node = cluster.node
        reserved = timeline.peak.total
        device = reserved + CUDA_CONTEXT_BYTES + nccl_bytes(cluster.num_gpus, uses_nvlink=node.uses_nvlink)
        usable = node.gpu.usable_bytes
        return Estimate(
            workload=self.workload,
            cluster=cluster,
            recipe=recipe,
            num_params=self.table.num_params,
            num_trainable_params=self.table.num_trained,
            timeline=timeline,
            peak_reserved_bytes=reserved,
            peak_device_bytes=device,
            usable_bytes=usable,
            reserve_bytes=reserve_bytes(usable),
            host=host_memory(self.table, recipe, num_ranks=cluster.num_gpus, ranks_per_node=node.num_gpus),
            disk=disk_space(self.table, recipe),
            flops_per_step=step_flops(trace) * recipe.grad_accum,
            step_time=step_time(self.table, trace, recipe, cluster),
        )


WORKSPACE_PHASES = ("forward", "backward", "step", "save")


def _with_workspaces(timeline: Timeline, num_bytes: int) -> Timeline:
    """cuBLAS workspaces come with the first matrix product and stay."""
    extra = Components(temporaries=num_bytes)
    phases: list[Phase] = []
    for phase in timeline.phases:
        if phase.name in WORKSPACE_PHASES:
            phase = Phase(name=phase.name, resident=phase.resident + extra, peak=phase.peak + extra)
        phases.append(phase)
    return Timeline(phases=tuple(phases))


def estimate(workload: Workload, recipe: Recipe, cluster: Cluster) -> Estimate:
    """The estimate of ``recipe`` training ``workload`` on ``cluster``."""
    capability = cluster.node.gpu.compute_capability
    return Estimator(workload, recipe, capability).estimate(recipe, cluster)


__all__ = ["Estimate", "Estimator", "Verdict", "estimate", "sample_image"]
