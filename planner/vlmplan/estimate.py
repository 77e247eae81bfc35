"""One recipe on one cluster: memory timeline, host, disk, seconds, and whether it fits.

``Estimator`` holds what does not depend on the cluster (the prepared model and its trace), so that a search can ask
for many clusters and sizes cheaply.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from vlmplan.architecture.attention import SMALL_HEAD_DIM, AttentionBackend
from vlmplan.architecture.model import Batch, Part
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.storage_log import LoggingTape, Operations, expanded
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.cautions import not_counted_caveat, stacked_caveat
from vlmplan.communication import step_collectives
from vlmplan.engines.collectives import Collectives
from vlmplan.engines.components import Components
from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster, Gpu, Vendor
from vlmplan.memory.allocator import SMALL_BYTES
from vlmplan.memory.device import DeviceMemory, Verdict, device_memory
from vlmplan.memory.disk import DiskSpace, disk_space
from vlmplan.memory.host import HostMemory, host_memory, read_bytes, stored_dtype, with_devices
from vlmplan.memory.overhead import workspace_bytes, workspace_sizes
from vlmplan.memory.phases import Phase
from vlmplan.memory.reservation import MicroBatch, peak_reserved_bytes
from vlmplan.memory.timeline import Timeline, memory_timeline
from vlmplan.models.tree import model_tree
from vlmplan.recipe import AttentionImplementation, LossKind, Method, Recipe
from vlmplan.sample_images import sample_image
from vlmplan.sizes import model_sizes, zero_settings
from vlmplan.timing import StepTime, TimedStep, speed_note, step_flops, timed_step
from vlmplan.units import gib_text
from vlmplan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class VaryingLengths:
    """Samples of different lengths: where the lengths are from, those of the replayed micro batches as padded, and
    reserved bytes where all samples have the plan's length and where they have these."""

    source: str
    lengths: tuple[int, ...]
    reserved_range: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one recipe needs on one cluster. Bytes are of the fullest GPU."""

    workload: Workload
    cluster: Cluster
    recipe: Recipe
    num_params: int
    num_trainable_params: int
    trained_by_part: Mapping[Part, int]
    """Trained parameters of each part that the model has."""
    stacked_bytes: int
    """Of a 4-bit model: weights that no Linear holds, which bitsandbytes leaves as they are; else 0."""
    timeline: Timeline
    device: DeviceMemory
    host: HostMemory
    disk: DiskSpace
    flops_per_step: int
    collectives: tuple[Collectives, ...]
    """The collectives of one step on one rank."""
    timed: TimedStep | None
    varying: VaryingLengths | None = None
    """What samples of different lengths were taken to be; ``device`` is of the fuller of both then."""

    @property
    def peak_allocated_bytes(self) -> int:
        return self.timeline.peak.total

    @property
    def verdict(self) -> Verdict:
        return Verdict.DOES_NOT_FIT if self.host_is_short else self.device.verdict

    @property
    def host_is_short(self) -> bool:
        """Whether the host's memory is known and too small."""
        ram = self.cluster.node.host_ram_bytes
        return ram is not None and self.host.peak_bytes > ram

    @property
    def hints(self) -> list[str]:
        """What would make a setup fit that does not, where it is as simple as that."""
        if self.host_is_short or not self.device.fits_without_fragments:
            return []
        return [
            f"its tensors take {gib_text(self.device.allocated_bytes)}: with --expandable-segments, which keeps the "
            f"allocator from holding blocks it cannot use, it fits"
        ]

    @property
    def cautions(self) -> list[str]:
        """What should be known of the numbers."""
        stacked = stacked_caveat(self.recipe, stacked_bytes=self.stacked_bytes, num_params=self.num_params)
        speed = None if self.timed is None else speed_note(self.cluster.node.gpu)
        return [note for note in (not_counted_caveat(self.workload.model), stacked, speed) if note is not None]

    @property
    def not_counted(self) -> tuple[str, ...]:
        """What the model takes beside text that no number has."""
        return self.workload.model.not_counted

    @property
    def samples_per_step(self) -> int:
        return self.recipe.micro_batch * self.recipe.grad_accum * self.cluster.num_gpus

    @property
    def step_time(self) -> StepTime | None:
        """As expected; None where a speed is not known."""
        return None if self.timed is None else self.timed.expected

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
        return self.workload.num_steps(self.samples_per_step)

    @property
    def run_seconds(self) -> float | None:
        return None if self.step_seconds is None else self.num_steps * self.step_seconds


class Estimator:
    """What clusters, batch sizes, engines and checkpointing do not change: the model as a method and a type make it.

    ``recipe`` decides method, adapters, frozen parts, precision and whether DeepSpeed holds the weights; recipes given
    to the other methods may differ from it in everything else.
    """

    def __init__(self, workload: Workload, recipe: Recipe, *, widest_head: int | None = None) -> None:
        """``widest_head``: of the model's attention heads, if another estimator of it has found out."""
        self.workload = workload
        self.image = sample_image(workload)
        self.model = prepared_model(model_tree(workload.model), recipe)
        self.table = ParameterTable(self.model)
        self.stored_dtype = stored_dtype(workload.model.config)
        self.sizes = model_sizes(self.model)
        self._stacks = list(self.model.stacks())
        self._traces: dict[Any, Trace] = {}
        self._operations: dict[Any, tuple[Trace, Operations]] = {}
        self._backends: dict[Any, AttentionBackend] = {}
        self.widest_head = widest_head

    def trace(self, recipe: Recipe, capability: tuple[int, int] | None) -> Trace:
        """One micro batch of the recipe on a GPU of this compute capability."""
        return self._traced(recipe, self.backend(recipe, capability))

    def _traced(self, recipe: Recipe, backend: AttentionBackend) -> Trace:
        key = self._trace_key(recipe, backend)
        if key not in self._traces:
            tape = self._tape(Tape, recipe)
            trace = self._run(tape, recipe, backend)
            self.widest_head = tape.widest_head
            self._traces[key] = trace
        return self._traces[key]

    def _trace_key(self, recipe: Recipe, backend: AttentionBackend) -> Any:
        """What the micro batch of a recipe depends on, beside what an estimator is made for."""
        checkpoints = (recipe.activation_checkpointing, recipe.vision_activation_checkpointing)
        is_sharded = recipe.zero_stage == 3
        keeps = recipe.keeps_linear_inputs
        return (recipe.micro_batch, checkpoints, backend, recipe.loss, recipe.autocast, keeps, is_sharded)

    def _tape(self, kind: type[Tape], recipe: Recipe) -> Tape:
        return kind(
            autocast=recipe.autocast,
            keeps_linear_inputs=recipe.keeps_linear_inputs,
            follows_weights=recipe.zero_stage == 3,
        )

    def _run(self, tape: Tape, recipe: Recipe, backend: AttentionBackend) -> Trace:
        batch = Batch(
            micro_batch=recipe.micro_batch,
            num_tokens=self.workload.seq_len,
            images_per_sample=self.workload.images_per_sample,
            image=self.image,
        )
        set_checkpointing(self._stacks, recipe)
        return self.model.run(tape, batch, backend, chunks_loss=recipe.loss is LossKind.CHUNKED)

    def _replay(self, recipe: Recipe, cluster: Cluster) -> Callable[[int | None], int] | None:
        """The caching allocator's peak for a capacity; None where expandable segments make it follow the tensors."""
        if recipe.expandable_segments:
            return None
        trace, operations = self._logged(recipe, cluster)
        return self._replayed(recipe, cluster, trace, operations)

    def _logged(self, recipe: Recipe, cluster: Cluster) -> MicroBatch:
        """One micro batch with every storage that it makes and frees."""
        backend = self.backend(recipe, cluster.node.gpu.compute_capability)
        key = self._trace_key(recipe, backend)
        if key not in self._operations:
            trace = self._run(self._tape(LoggingTape, recipe), recipe, backend)
            self._operations[key] = trace, expanded(trace, least_bytes=SMALL_BYTES)
        return self._operations[key]

    def _replayed(
        self,
        recipe: Recipe,
        cluster: Cluster,
        trace: Trace,
        operations: Operations,
        micro_batches: Sequence[MicroBatch] = (),
    ) -> Callable[[int | None], int]:
        def replay(capacity_bytes: int | None) -> int:
            return peak_reserved_bytes(
                self.table,
                trace,
                operations,
                recipe,
                num_ranks=cluster.num_gpus,
                workspaces=workspace_sizes(cluster.node.gpu),
                capacity_bytes=capacity_bytes,
                micro_batches=micro_batches,
            )

        return replay

    def _at_length(self, seq_len: int) -> "Estimator":
        """The same model on samples of another length."""
        other = copy(self)
        other.workload = replace(self.workload, seq_len=seq_len)
        other._traces, other._operations = {}, {}
        return other

    def device_for_lengths(
        self, recipe: Recipe, cluster: Cluster, lengths: Sequence[int], timeline: Timeline
    ) -> DeviceMemory:
        """The fullest GPU of a run whose micro batches have ``lengths`` tokens, in this order, as padded.

        As many traces as there are different lengths are made: seconds, not milliseconds.
        """
        if recipe.expandable_segments:
            return device_memory(timeline.peak.total, cluster)
        logged = {length: self._at_length(length)._logged(recipe, cluster) for length in sorted(set(lengths))}
        micro_batches = [logged[length] for length in lengths]
        return device_memory(
            timeline.peak.total, cluster, self._replayed(recipe, cluster, *micro_batches[0], micro_batches)
        )

    def backend(self, recipe: Recipe, capability: tuple[int, int] | None) -> AttentionBackend:
        """The attention of a recipe; GPUs on which every head of this model meets the same kernel share one."""
        key = (recipe.attention, capability)
        if key not in self._backends:
            self._backends[key] = self._new_backend(recipe, capability)
        return self._backends[key]

    def _new_backend(self, recipe: Recipe, capability: tuple[int, int] | None) -> AttentionBackend:
        backend = AttentionBackend(implementation=recipe.attention.value, compute_capability=capability or (8, 0))
        common = replace(backend, compute_capability=(8, 0))
        if recipe.attention is not AttentionImplementation.SDPA:
            return common
        if backend.compute_capability < (8, 0):
            return replace(backend, compute_capability=(7, 0))
        if not backend.has_small_shared_memory:
            return common
        if self.widest_head is None:
            self._traced(recipe, common)
        assert self.widest_head is not None
        return common if self.widest_head <= SMALL_HEAD_DIM else replace(backend, compute_capability=(8, 6))

    def timeline(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """The memory timeline of the fullest GPU, library workspaces included."""
        return with_workspaces(self.timeline_of_tensors(recipe, cluster), cluster.node.gpu)

    def timeline_of_tensors(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """The same without workspaces: of a cluster it asks the number of GPUs, the kernels that they meet, and whether
        they are the host itself."""
        capability, is_on_cpu = cluster.node.gpu.compute_capability, cluster.node.gpu.vendor is Vendor.CPU
        return memory_timeline(
            self.table,
            self.trace(recipe, capability),
            recipe,
            num_ranks=cluster.num_gpus,
            is_on_cpu=is_on_cpu,
            read_bytes=self._read_bytes(recipe) if is_on_cpu else 0,
        )

    def host(self, recipe: Recipe, cluster: Cluster) -> HostMemory:
        """What a node's host holds beside its devices."""
        return host_memory(
            self.table,
            recipe,
            num_ranks=cluster.num_gpus,
            ranks_per_node=cluster.node.num_gpus,
            stored=self.stored_dtype,
        )

    def disk(self, recipe: Recipe) -> DiskSpace:
        """Disk space over all nodes, whatever the batch."""
        return disk_space(self.table, recipe, stored=self.stored_dtype)

    def _read_bytes(self, recipe: Recipe) -> int:
        return read_bytes(self.table, recipe, self.stored_dtype)

    def estimate(self, recipe: Recipe, cluster: Cluster, timeline: Timeline | None = None) -> Estimate:
        """The whole estimate; ``timeline`` if it is there already."""
        node = cluster.node
        trace = self.trace(recipe, node.gpu.compute_capability)
        if timeline is None:
            timeline = self.timeline(recipe, cluster)
        device = device_memory(timeline.peak.total, cluster, self._replay(recipe, cluster))
        host = self.host(recipe, cluster)
        if node.gpu.vendor is Vendor.CPU:
            read = self._read_bytes(recipe)
            load_bytes = timeline.phases[0].peak.total - read + device.overhead_bytes
            host = with_devices(
                host, node.num_gpus, load_bytes=load_bytes, peak_bytes=device.device_bytes, read_bytes=read
            )
        return Estimate(
            workload=self.workload,
            cluster=cluster,
            recipe=recipe,
            num_params=self.table.num_params,
            num_trainable_params=self.table.num_trained,
            trained_by_part=self.table.trained_by_part,
            stacked_bytes=self.table.stacked_bytes if recipe.method is Method.QLORA else 0,
            timeline=timeline,
            device=device,
            host=host,
            disk=self.disk(recipe),
            flops_per_step=step_flops(trace) * recipe.grad_accum,
            collectives=step_collectives(self.table, recipe, num_ranks=cluster.num_gpus, trace=trace),
            timed=timed_step(self.table, trace, recipe, cluster, self.workload),
        )


WORKSPACE_PHASES = ("forward", "backward", "step", "save")


def with_workspaces(timeline: Timeline, gpu: Gpu) -> Timeline:
    """cuBLAS workspaces come with the first matrix product and stay."""
    extra = Components(temporaries=workspace_bytes(gpu))
    phases: list[Phase] = []
    for phase in timeline.phases:
        if phase.name in WORKSPACE_PHASES:
            phase = Phase(name=phase.name, resident=phase.resident + extra, peak=phase.peak + extra)
        phases.append(phase)
    return Timeline(phases=tuple(phases))


def estimate(workload: Workload, recipe: Recipe, cluster: Cluster) -> Estimate:
    """The estimate of ``recipe`` training ``workload`` on ``cluster``."""
    return Estimator(workload, recipe).estimate(recipe, cluster)


def estimate_with_sizes(workload: Workload, recipe: Recipe, cluster: Cluster) -> Estimate:
    """The same with ZeRO's bucket, prefetch, live and reuse sizes chosen: for speed, or for memory if that must be."""
    return sized_estimate(Estimator(workload, recipe), recipe, cluster)


def sized_estimate(
    estimator: Estimator,
    recipe: Recipe,
    cluster: Cluster,
    timeline_of: Callable[[Recipe, Cluster], Timeline] | None = None,
) -> Estimate:
    """``estimate_with_sizes`` by an estimator that is there already; ``timeline_of`` may know timelines."""
    timeline_of = timeline_of or estimator.timeline
    *first, last = sized_recipes(estimator, recipe, cluster)
    for sized in first:
        timeline = timeline_of(sized, cluster)
        if device_memory(timeline.peak.total, cluster).verdict is Verdict.FITS:  # its tensors do
            found = estimator.estimate(sized, cluster, timeline)
            if found.verdict is Verdict.FITS:
                return found
    return estimator.estimate(last, cluster, timeline_of(last, cluster))


def sized_recipes(estimator: Estimator, recipe: Recipe, cluster: Cluster) -> list[Recipe]:
    """The recipe with sizes for speed, then with those for memory, which are taken where the first do not fit; as it is
    where there are no sizes to choose."""
    if not recipe.uses_deepspeed:
        return [recipe]
    return [
        recipe.with_changes(zero=zero_settings(estimator.sizes, estimator.table, recipe, cluster, is_lean=is_lean))
        for is_lean in (False, True)
    ]


__all__ = [
    "Estimate",
    "Estimator",
    "Verdict",
    "estimate",
    "estimate_with_sizes",
    "sized_estimate",
    "sized_recipes",
    "with_workspaces",
]
