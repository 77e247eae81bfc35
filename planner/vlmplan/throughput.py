"""Seconds per optimizer step: a roofline over the operations that the tape recorded, plus what moves between devices.

A micro batch is forward, recomputation and backward of every section; a step is ``grad_accum`` of them, gradient
exchange and the optimizer. Every efficiency is one constant below with its grade.
"""

from dataclasses import dataclass

from vlmplan.architecture.trace import PhaseWork, Trace
from vlmplan.communication import OVERLAP_FRACTION, exchange_seconds, traffic
from vlmplan.hardware import Cluster, Gpu
from vlmplan.memory.optimizer_states import state_bytes
from vlmplan.memory.parameters import ParameterTable, partition_size
from vlmplan.recipe import Offload, Precision, Recipe
from vlmplan.units import DType

MATMUL_EFFICIENCY = 0.75
"""Part of the dense peak that large matrix products reach. Cited: best sustained rates of 0.87 (A100) and 0.80 (H100)
in github.com/stas00/ml-engineering, compute/accelerator (MAMF table); training shapes are smaller. Assumed between."""
ATTENTION_EFFICIENCY = 0.5
"""Part of the dense peak that fused attention reaches, forward and backward together. Cited: FlashAttention-2, arXiv
2307.08691, figures 4 and 5: 50 to 73 % forward, 40 to 63 % backward on an A100."""
BANDWIDTH_EFFICIENCY = 0.8
"""Part of the memory bandwidth that elementwise kernels reach. Assumed: 0.75 to 0.9."""
KERNEL_SECONDS = 9e-6
"""Time that eager PyTorch needs to launch one operation; a GPU that finishes earlier waits. Assumed: 6 to 12 us."""
CAUSAL_FRACTION = 0.5
"""Part of causal attention that a fused kernel really computes."""
PCIE_COPY_EFFICIENCY = 0.8
"""Part of PCIe's rate that pinned copies reach. Assumed."""
HOST_ADAM_BYTES_PER_SECOND = 60e9
"""Host memory traffic that DeepSpeed's CPU Adam sustains on one node. Assumed: a two-socket server of 2020 on."""
NVME_BYTES_PER_SECOND = 4e9
"""Read or write rate of one node's NVMe storage under DeepSpeed's asynchronous I/O. Assumed: one PCIe 4 drive."""
FIXED_STEP_SECONDS = 0.01
"""Data loading, logging and Python around a step. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one optimizer step by what they are spent on; ``total`` is their sum."""

    forward: float
    recompute: float
    backward: float
    communication: float
    optimizer: float
    offload: float
    fixed: float = FIXED_STEP_SECONDS

    @property
    def total(self) -> float:
        return (
            self.forward
            + self.recompute
            + self.backward
            + self.communication
            + self.optimizer
            + self.offload
            + self.fixed
        )

    def as_json(self) -> dict[str, float]:
        names = ("forward", "recompute", "backward", "communication", "optimizer", "offload", "fixed")
        return {name: getattr(self, name) for name in names}


def peak_flops_per_second(gpu: Gpu, recipe: Recipe) -> float | None:
    """Dense peak of matrix products in the recipe's type; None if it is not known."""
    peaks = gpu.peak_flops_per_second
    by_precision = {Precision.FP16: peaks.fp16, Precision.FP32: peaks.tf32 or peaks.fp32}
    return by_precision.get(recipe.precision, peaks.bf16)


def busy_seconds(work: PhaseWork, *, flops_per_second: float, bytes_per_second: float) -> float:
    """A roofline per matrix product, attention by its operations, the rest by bandwidth."""
    compute = flops_per_second * MATMUL_EFFICIENCY
    bandwidth = bytes_per_second * BANDWIDTH_EFFICIENCY
    products = 0.0
    for (flops, hbm_bytes), count in work.matmuls.items():
        products += count * max(flops / compute, hbm_bytes / bandwidth)
    attended = work.attention_flops - CAUSAL_FRACTION * work.causal_attention_flops
    return products + attended / (flops_per_second * ATTENTION_EFFICIENCY) + work.elementwise_bytes / bandwidth


PhaseSeconds = tuple[float, float, float]
"""Of forward, recomputation and backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSeconds:
    """One micro batch: what the GPU has to do, and what launching it takes."""

    busy: PhaseSeconds
    launches: PhaseSeconds

    @property
    def phases(self) -> PhaseSeconds:
        """The longer of the two in each phase."""
        forward, recompute, backward = map(max, self.busy, self.launches)
        return forward, recompute, backward

    def towards(self, other: "MicroBatchSeconds", fraction: float) -> "MicroBatchSeconds":
        """A micro batch between two others: both parts grow evenly, the longer of the two does not."""
        return MicroBatchSeconds(
            busy=_between(self.busy, other.busy, fraction), launches=_between(self.launches, other.launches, fraction)
        )


def _between(low: PhaseSeconds, high: PhaseSeconds, fraction: float) -> PhaseSeconds:
    forward, recompute, backward = (a + (b - a) * fraction for a, b in zip(low, high, strict=True))
    return forward, recompute, backward


def micro_batch_seconds(trace: Trace, gpu: Gpu, recipe: Recipe) -> MicroBatchSeconds | None:
    """One micro batch on ``gpu``; None if its speed is not known."""
    flops, bandwidth = peak_flops_per_second(gpu, recipe), gpu.memory_bandwidth_bytes_per_second
    if flops is None or bandwidth is None:
        return None
    works = trace.works()
    forward, recompute, backward = (
        busy_seconds(work, flops_per_second=flops, bytes_per_second=bandwidth) for work in works
    )
    first, again, back = (work.num_kernels * KERNEL_SECONDS for work in works)
    return MicroBatchSeconds(busy=(forward, recompute, backward), launches=(first, again, back))


def step_flops(trace: Trace) -> int:
    """Floating point operations of one micro batch, as torch's ``FlopCounterMode`` counts them."""
    return sum(work.flops for work in trace.works())


def optimizer_seconds(table: ParameterTable, recipe: Recipe, *, num_ranks: int, gpu: Gpu) -> float:
    """The update by bandwidth: gradient, weight and states are read, weight and states written."""
    bandwidth = gpu.memory_bandwidth_bytes_per_second
    assert bandwidth is not None
    is_sharded = recipe.zero_stage in (1, 2, 3)
    elements = partition_size(table.num_trained, num_ranks) if is_sharded else table.num_trained
    width = recipe.master_dtype.num_bytes if recipe.uses_deepspeed else table.trained_dtype.num_bytes
    states = state_bytes(recipe, [(elements,)], DType.FLOAT32 if width == DType.FLOAT32.num_bytes else DType.BFLOAT16)
    return (elements * 3 * width + 2 * states) / (bandwidth * BANDWIDTH_EFFICIENCY)


def offload_seconds(table: ParameterTable, recipe: Recipe, cluster: Cluster) -> float | None:
    """CPU Adam and the copies over PCIe and to NVMe, per step; None if the bus is not known.

    Gradients go down and weights come back once a step (gradients every micro batch); parameters offloaded cross
    the bus twice a micro batch. The ranks of a node share its host memory.
    """
    if recipe.offload_optimizer is Offload.NONE and recipe.offload_params is Offload.NONE:
        return 0.0
    pcie = cluster.node.gpu.pcie_bytes_per_second
    if pcie is None:
        return None
    shard = table.num_trained / cluster.num_gpus
    p = table.trained_dtype.num_bytes
    bus = 0.0
    seconds = 0.0
    if recipe.offload_optimizer is not Offload.NONE:
        bus += shard * p * (recipe.grad_accum + 1)
        node_elements = table.num_trained / cluster.num_nodes
        # master, gradient and both moments read, master and moments written: 7 x 4 bytes
        seconds += node_elements * 7 * 4 / HOST_ADAM_BYTES_PER_SECOND
        if recipe.offload_optimizer is Offload.NVME:
            seconds += node_elements * 2 * 12 / NVME_BYTES_PER_SECOND
    if recipe.offload_params is not Offload.NONE:
        weights = table.total_bytes / cluster.num_gpus
        bus += 2 * weights * recipe.grad_accum
        if recipe.offload_params is Offload.NVME:
            seconds += 2 * recipe.grad_accum * table.total_bytes / cluster.num_nodes / NVME_BYTES_PER_SECOND
    return seconds + bus / (pcie * PCIE_COPY_EFFICIENCY)


def step_time(table: ParameterTable, trace: Trace, recipe: Recipe, cluster: Cluster) -> StepTime | None:
    """Seconds of one optimizer step on ``cluster``; None if the speed of the GPU or of a link is not known."""
    seconds = micro_batch_seconds(trace, cluster.node.gpu, recipe)
    return None if seconds is None else step_of(table, seconds.phases, trace, recipe, cluster)


def step_of(
    table: ParameterTable,
    micro_batch: PhaseSeconds,
    trace: Trace,
    recipe: Recipe,
    cluster: Cluster,
) -> StepTime | None:
    """A step of ``grad_accum`` micro batches of (forward, recompute, backward) seconds, sending what ``trace`` says."""
    offload = offload_seconds(table, recipe, cluster)
    exchange = _exchange(table, trace, recipe, cluster)
    if offload is None or exchange is None:
        return None
    gpu = cluster.node.gpu
    forward, recompute, backward = (recipe.grad_accum * seconds for seconds in micro_batch)
    hidden = min(exchange * OVERLAP_FRACTION, backward) if recipe.zero.overlap_comm else 0.0
    on_host = recipe.offload_optimizer is not Offload.NONE
    return StepTime(
        forward=forward,
        recompute=recompute,
        backward=backward,
        communication=exchange - hidden,
        optimizer=0.0 if on_host else optimizer_seconds(table, recipe, num_ranks=cluster.num_gpus, gpu=gpu),
        offload=offload,
    )


def _exchange(table: ParameterTable, trace: Trace, recipe: Recipe, cluster: Cluster) -> float | None:
    sent = traffic(table, recipe, num_ranks=cluster.num_gpus, trace=trace)
    seconds = exchange_seconds(sent, cluster)
    return None if seconds is None else seconds.total
