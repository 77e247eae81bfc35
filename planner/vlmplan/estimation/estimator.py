"""Estimates of one model for many clusters, batch sizes and engines: memory of every kind, and seconds."""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain

from vlmplan.communication import step_collectives
from vlmplan.engines.choice import engine_of
from vlmplan.engines.newton_schulz import update_flops
from vlmplan.estimation.moved_to_host import moved_to_host
from vlmplan.estimation.record import Estimate
from vlmplan.estimation.references import (
    adapter_copy_bytes,
    beside_bytes,
    host_copy_bytes,
    idle_bytes,
    reference_shard_bytes,
)
from vlmplan.estimation.replayed_model import ReplayedModel
from vlmplan.estimation.sample_runs import SampleRuns
from vlmplan.estimation.sent_weights import whole_bytes
from vlmplan.hardware import Cluster
from vlmplan.memory.device import DeviceMemory, device_memory, shows_at_most
from vlmplan.memory.disk import DiskSpace, disk_space
from vlmplan.memory.evaluation import Evaluated
from vlmplan.memory.host import (
    PROCESS_BYTES,
    HostMemory,
    fp8_savings,
    host_memory,
    mxfp4_savings,
    pinned_bytes,
    read_bytes,
    with_devices,
)
from vlmplan.memory.inference_engine import InferenceEngine, inference_weights
from vlmplan.memory.lasting import Buffers, with_inference_engine, with_lasting, with_moved
from vlmplan.memory.overhead import process_group
from vlmplan.memory.replayed_steps import is_replayed
from vlmplan.memory.reserved_peaks import ReservedPeaks
from vlmplan.memory.resume import resume_memory, resume_read_bytes
from vlmplan.memory.timeline import StartedRun, Timeline
from vlmplan.models import stored_dtype
from vlmplan.recipe import Recipe
from vlmplan.recipe.task_choices import Reference, ReferenceShards
from vlmplan.sizes import model_sizes
from vlmplan.timing import EvaluationTime, RolloutWork, TimedStep, evaluation_time, step_flops, timed_step
from vlmplan.workload import Workload


class Estimator(ReplayedModel):
    """A traced model, and what its recipes take on clusters."""

    def __init__(self, workload: Workload, recipe: Recipe, *, widest_head: int | None = None) -> None:
        """The arguments are those of ``TracedModel``."""
        super().__init__(workload, recipe, widest_head=widest_head)
        self.stored_dtype = stored_dtype(workload.model.config)
        self.sizes = model_sizes(self.model)
        self._runs: dict[tuple[Recipe, int, bool, int | None], StartedRun] = {}

    def shows_at_most(self, device_bytes: int, recipe: Recipe, cluster: Cluster, timeline: Timeline) -> bool:
        """Whether an estimate with this timeline has no more of the GPU: without one, of which the allocator's replay
        takes most of the time, and which ends here as soon as it does."""
        of = device_bytes, timeline.peak.total, cluster, process_group(recipe, cluster.num_gpus)
        if not shows_at_most(*of, None):
            return False
        known = self._replay(recipe, cluster, timeline.rank)
        return known is None or shows_at_most(*of, partial(self._samples.replays.stays_within, *known))

    def with_samples(self, workload: Workload) -> "Estimator":
        """The estimator of the same model on the samples of another workload. Raises InputError as a new estimator
        does."""
        other = copy(self)
        other._samples = SampleRuns(workload, self.model, self.table, self._trace_key)
        return other

    def step_time(self, recipe: Recipe, cluster: Cluster) -> TimedStep | None:
        """Seconds of a step; None if a speed is not known."""
        capability = cluster.node.gpu.kernel_capability
        trace = self.trace(recipe, capability)
        rollout = self.rollout_work(recipe, capability, num_ranks=cluster.num_gpus)
        return timed_step(self.table, trace, recipe, cluster, self.workload, rollout)

    def evaluation_time(self, recipe: Recipe, cluster: Cluster) -> EvaluationTime | None:
        """Batches and seconds of one evaluation; None where nothing is evaluated, or its time is not known."""
        evaluation = recipe.evaluation
        if evaluation is None or evaluation.samples is None:
            return None
        backend = self.backend(recipe, cluster.node.gpu.compute_capability)
        num_ranks = cluster.num_gpus
        if recipe.task is not None and recipe.task.is_grpo:
            work = self._samples.rollouts.evaluation_work(recipe, backend, num_ranks=num_ranks)
        else:
            gathered = whole_bytes(self.table, recipe, num_ranks)
            work = self._samples.evaluations.work(recipe, backend, whole_bytes=gathered)
        return evaluation_time(self.table, work, recipe, cluster, self.workload)

    def rollout_work(self, recipe: Recipe, capability: tuple[int, int] | None, *, num_ranks: int) -> RolloutWork | None:
        """What GRPO does before its steps on one of ``num_ranks`` GPUs of this compute capability; None in other
        tasks."""
        if recipe.task is None or not recipe.task.is_grpo:
            return None
        return self._samples.rollouts.work(recipe, self.backend(recipe, capability), num_ranks=num_ranks)

    def devices_for_lengths(
        self, recipe: Recipe, cluster: Cluster, runs: Sequence[Sequence[int]], timeline: Timeline
    ) -> list[DeviceMemory]:
        """The fullest GPU of each of ``runs``, whose micro batches have as many tokens, in this order, as padded.

        As many traces as there are different lengths are made: seconds, not milliseconds.
        """
        if not is_replayed(recipe):
            return [device_memory(timeline.peak.total, cluster, process_group(recipe, cluster.num_gpus))] * len(runs)
        lengths_of_all = sorted(set(chain.from_iterable(runs)))
        estimators = {length: self.with_samples(replace(self.workload, seq_len=length)) for length in lengths_of_all}
        logged = {length: one._logged(recipe, cluster) for length, one in estimators.items()}

        def device(lengths: Sequence[int]) -> DeviceMemory:
            alike_but_first = [logged[length] for length in lengths]
            micro_batches = estimators[lengths[0]]._with_first(alike_but_first, recipe, cluster)
            replay = self._replayed(recipe, cluster, timeline.rank, micro_batches)
            return device_memory(
                timeline.peak.total,
                cluster,
                process_group(recipe, cluster.num_gpus),
                partial(ReservedPeaks().total_bytes, tuple(lengths), replay),
            )

        return [device(lengths) for lengths in runs]

    def timeline(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """The memory timeline of the fullest GPU, with library workspaces and the micro batches that wait."""
        timeline = self.timeline_of_tensors(recipe, cluster)
        return self.with_lasting(timeline, recipe, cluster)

    def with_lasting(self, timeline: Timeline, recipe: Recipe, cluster: Cluster) -> Timeline:
        """``timeline`` of tensors with what lasts over steps."""
        adapters = adapter_copy_bytes(self.table, recipe)
        copied = beside_bytes(self.table, recipe, cluster.num_gpus) - adapters
        buffers = Buffers(self.table.table_bytes(recipe), self.table.layer_buffer_bytes)
        lasting = with_lasting(timeline, cluster.node.gpu, recipe, self.batch_bytes(recipe), copied, adapters, buffers)
        moved = moved_to_host(self.table, recipe, cluster.num_gpus)
        lasting = with_moved(
            lasting,
            moved.gone,
            copied_bytes=moved.copied_bytes,
            doubled_bytes=moved.doubled_bytes,
            kept_bytes=moved.kept_bytes,
        )
        return with_inference_engine(lasting, self.inference_engine(recipe, cluster))

    def inference_engine(self, recipe: Recipe, cluster: Cluster) -> InferenceEngine | None:
        """vLLM on one of the training GPUs; None where it has no part of them."""
        gpu = cluster.node.gpu
        return self._samples.rollouts.inference_engine(recipe, self.backend(recipe, gpu.kernel_capability), gpu)

    def batch_bytes(self, recipe: Recipe) -> int:
        """Bytes of one micro batch as it comes to the GPU, where those of a step are there together; else 0."""
        task = recipe.task
        is_kept = recipe.keeps_batches or (task is not None and task.is_grpo and not task.is_of_verl)
        return sum(self._sent_bytes(recipe)) if is_kept else 0

    def timeline_of_tensors(self, recipe: Recipe, cluster: Cluster) -> Timeline:
        """The memory timeline without what lasts over steps: of a cluster it asks the number of GPUs, the kernels that
        they meet, whether they are the host itself, and ``room_bytes``."""
        gpu = cluster.node.gpu
        trace = self.trace(recipe, gpu.kernel_capability)
        started = self._started(
            recipe, cluster.num_gpus, is_on_cpu=gpu.is_cpu, room_bytes=self.room_bytes(recipe, cluster)
        )
        return started.timeline(
            trace,
            recipe,
            self._evaluated_on(recipe, cluster),
            batch_bytes=self.batch_bytes(recipe),
            first=self.first_trace(recipe, gpu.kernel_capability),
        )

    def evaluated(
        self, recipe: Recipe, *, num_ranks: int, capability: tuple[int, int] | None, is_on_cpu: bool
    ) -> Evaluated | None:
        """What the recipe's evaluation runs and keeps on one of ``num_ranks`` GPUs; None where there is none."""
        backend = self.backend(recipe, capability)
        if recipe.task is not None and recipe.task.is_grpo:
            return self._samples.rollouts.rollout(recipe, backend, num_ranks=num_ranks, is_on_cpu=is_on_cpu)
        if recipe.evaluation is None:
            return None
        return self._samples.evaluations.evaluated(recipe, backend, num_ranks=num_ranks, is_on_cpu=is_on_cpu)

    def _evaluated_on(self, recipe: Recipe, cluster: Cluster) -> Evaluated | None:
        gpu = cluster.node.gpu
        return self.evaluated(
            recipe, num_ranks=cluster.num_gpus, capability=gpu.kernel_capability, is_on_cpu=gpu.is_cpu
        )

    def _started(self, recipe: Recipe, num_ranks: int, *, is_on_cpu: bool, room_bytes: int | None) -> StartedRun:
        """The run before any micro batch, one for all recipes that differ in these alone."""
        key = (recipe.without_micro_batch(), num_ranks, is_on_cpu, room_bytes)
        if key not in self._runs:
            read_bytes = self._read_bytes(recipe) if is_on_cpu else 0
            self._runs[key] = StartedRun(
                self.table,
                recipe,
                num_ranks=num_ranks,
                is_on_cpu=is_on_cpu,
                read_bytes=read_bytes,
                room_bytes=room_bytes,
            )
        return self._runs[key]

    def host(self, recipe: Recipe, cluster: Cluster) -> HostMemory:
        """What a node's host holds beside its devices."""
        node = cluster.node
        host = host_memory(
            self.table,
            recipe,
            num_ranks=cluster.num_gpus,
            ranks_per_node=node.num_gpus,
            stored=self.stored_dtype,
            packed_bytes=self._packed_bytes,
        )
        evaluated = self._evaluated_on(recipe, cluster)
        kept = 0 if evaluated is None else node.num_gpus * evaluated.kept.host_bytes
        waiting = node.num_gpus * self._host_copy_bytes(recipe, cluster)
        copied = node.num_gpus * host_copy_bytes(self.table, recipe, self.stored_dtype)
        task = recipe.task
        if task is not None and task.uses_vllm_here and task.vllm_sleep_level == 1:
            waiting += node.num_gpus * inference_weights(self.table, recipe).asleep_bytes
        waiting += node.num_gpus * sum(idle_bytes(self.table, recipe, cluster.num_gpus))
        waiting += node.num_gpus * moved_to_host(self.table, recipe, cluster.num_gpus).host_bytes
        if task is not None and task.reference_shards is not ReferenceShards.GPU and recipe.reference is Reference.COPY:
            waiting += node.num_gpus * reference_shard_bytes(self.table, recipe, cluster.num_gpus)
        built = node.num_gpus * (PROCESS_BYTES + self._flattened_on_host_bytes(recipe, cluster))
        return host._replace(
            load_bytes=max(host.load_bytes + copied, built),
            steady_bytes=host.steady_bytes + waiting,
            evaluation_bytes=kept,
        )

    def _flattened_on_host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """What a rank has there while its engine is built, once the model is on the GPU."""
        room = self.room_bytes(recipe, cluster)
        if room is None:
            return 0
        return engine_of(self.table, recipe, num_ranks=cluster.num_gpus, room_bytes=room).flattened_on_host_bytes

    def _host_copy_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """Pinned memory in which activations of one rank wait for backward."""
        if not recipe.offload_activations:
            return 0
        forward, _, _ = self.trace(recipe, cluster.node.gpu.kernel_capability).works()
        return sum(count * pinned_bytes(num_bytes) for num_bytes, count in forward.host_copies.items())

    def resume_host_bytes(self, recipe: Recipe, cluster: Cluster) -> int:
        """What a node's host holds beside its devices while the run goes on from a checkpoint."""
        read = resume_read_bytes(
            self.table,
            recipe,
            self.workload.saving,
            export_bytes=self.disk(recipe).export_bytes,
            num_ranks=cluster.num_gpus,
            ranks_per_node=cluster.node.num_gpus,
        )
        return self.host(recipe, cluster).steady_bytes + read

    def disk(self, recipe: Recipe) -> DiskSpace:
        """Disk space over all nodes, whatever the batch."""
        return disk_space(
            self.table,
            recipe,
            stored=self.stored_dtype,
            packed_bytes=self._packed_bytes,
            saving=self.workload.saving,
        )

    @property
    def _packed_bytes(self) -> int:
        if self.workload.model.is_fp8:
            return fp8_savings(self.table)
        return mxfp4_savings(self.table) if self.workload.model.is_mxfp4 else 0

    def _read_bytes(self, recipe: Recipe) -> int:
        return read_bytes(self.table, recipe, self.stored_dtype)

    def _orthogonalising_flops(self, recipe: Recipe, cluster: Cluster, rank: int) -> int:
        """FLOPs of Muon's update on a rank."""
        engine = engine_of(self.table, recipe, num_ranks=cluster.num_gpus, rank=rank)
        return sum([update_flops(shape) for shape in engine.orthogonalised])

    def estimate(self, recipe: Recipe, cluster: Cluster, timeline: Timeline | None = None) -> Estimate:
        """The whole estimate; ``timeline`` if it is there already."""
        node = cluster.node
        trace = self.trace(recipe, node.gpu.kernel_capability)
        if timeline is None:
            timeline = self.timeline(recipe, cluster)
        engine = self.inference_engine(recipe, cluster)
        is_open = recipe.task is not None and recipe.task.vllm_memory is None
        if engine is not None and recipe.task is not None and is_open and engine.needed_utilization <= 1:
            recipe = recipe.with_changes(task=replace(recipe.task, vllm_memory=engine.needed_utilization))
        known = self._replay(recipe, cluster, timeline.rank)
        replay = None if known is None else partial(self._samples.replays.total_bytes, *known)
        device = device_memory(timeline.peak.total, cluster, process_group(recipe, cluster.num_gpus), replay)
        host = self.host(recipe, cluster)
        if node.gpu.is_cpu:
            read = self._read_bytes(recipe)
            load_bytes = timeline.phases[0].peak.total - read + device.overhead_bytes
            host = with_devices(
                host, node.num_gpus, load_bytes=load_bytes, peak_bytes=device.device_bytes, read_bytes=read
            )
        disk = self.disk(recipe)
        return Estimate(
            workload=self.workload,
            cluster=cluster,
            recipe=recipe,
            num_params=self.table.num_params,
            num_trainable_params=self.table.num_trained,
            trained_by_part=self.table.trained_by_part,
            stacked_bytes=self.table.stacked_bytes if recipe.method.packs_weights else 0,
            timeline=timeline,
            device=device,
            host=host,
            disk=disk,
            resume=resume_memory(
                self.table, recipe, self.workload.saving, timeline, cluster, export_bytes=disk.export_bytes
            ),
            flops_per_step=step_flops(trace) * recipe.grad_accum
            + self._orthogonalising_flops(recipe, cluster, timeline.rank),
            collectives=step_collectives(self.table, recipe, num_ranks=cluster.num_gpus, trace=trace),
            timed=self.step_time(recipe, cluster),
            engine=engine,
            evaluating=self.evaluation_time(recipe, cluster),
            reserves=self._reserves(recipe, cluster, timeline.rank),
        )
