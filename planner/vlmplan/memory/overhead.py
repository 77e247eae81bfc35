"""What a GPU holds besides tensors: library workspaces, the allocator's reserve, CUDA context and NCCL.

Three numbers are different things: *allocated* (live tensors and workspaces, ``torch.cuda.max_memory_allocated``),
*reserved* (what the caching allocator holds), *device* (what nvidia-smi shows for the process). A GPU's calibration
stands in place of what is assumed here.
"""

from vlmplan.hardware import Cluster, Gpu
from vlmplan.recipe import Recipe
from vlmplan.units import GIB, MIB, Choice

CUBLAS_WORKSPACE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
"""Workspace of one cuBLAS handle before Hopper, 8.125 MiB. Cited: torch 2.13 ``CUDABlas``/``CublasHandlePool.cpp``,
``getChosenWorkspaceSize``. Measured: 17.4e6 bytes beside the tensors of a Mistral-7B LoRA run on an A100 (forward and
backward threads have a handle each: 2 x 8,519,680)."""
HOPPER_CUBLAS_WORKSPACE_BYTES = 4096 * 8 * 1024
"""The same from compute capability 9.0 on: 32 MiB. Cited: same place."""
NUM_CUBLAS_HANDLES = 2

CUDA_CONTEXT_BYTES = 500 * MIB
"""CUDA context, loaded kernels and library handles of one process. Assumed: 0.3 to 0.6 GiB are seen."""
HOPPER_CONTEXT_BYTES = 767 * MIB
"""The same from compute capability 9.0 on, but for cards of workstations and games (12.0). Measured: 767 to 771 MiB in
31 runs on an H200 and an H100 with torch 2.11 for CUDA 13.0 (753 in float32; tests/gpu), of which 527 are there before
the first kernel."""
MEASURED_CONTEXT_BYTES = {"t4": 141 * MIB}
"""The same of single cards. Measured: 140.9 MiB in 69 runs on a T4 with torch 2.10 and 2.14 for CUDA 12.8 and 13.0, of
which 104.9 are there before the first kernel (fitcheck-llm 0.3.1, data/measurements, MIT)."""
HOPPER, CONSUMER_BLACKWELL = (9, 0), (12, 0)
CPU_PROCESS_BYTES = 411 * MIB
"""What a rank on a CPU takes of its share of the host's memory before it holds anything of the model: Python and
libraries. Measured: resident memory after importing torch 2.13, transformers, deepspeed and peft."""

NCCL_COMMUNICATOR_BYTES = 484 * MIB
"""NCCL itself, before it talks to anybody: kernels, their stacks, a communicator. Cited: what a communicator of one GPU
takes on an RTX 3090 (github.com/NVIDIA/nccl/pull/2366)."""
HOPPER_NCCL_COMMUNICATOR_BYTES = 562 * MIB
"""The same from compute capability 9.0 on. Measured: 558 to 566 MiB with stage 3 and FSDP2 on one H200 and one H100
with torch 2.11 (tests/gpu)."""
HOPPER_STAGE_1_2_BYTES = 386 * MIB
"""More than that where DeepSpeed runs stage 1 or 2, from compute capability 9.0 on. Measured: 1715 to 1801 MiB beyond
the reserved bytes in 4 runs on one H200, where stage 3 has 1329. Why is not known, and nothing of older cards."""
NCCL_CONNECTION_BYTES = 10 * MIB
"""Buffers of one NCCL channel to one peer. Cited: allocations of 10,485,760 bytes per connection in
github.com/NVIDIA/nccl/issues/1685."""
NCCL_RING_CONNECTIONS = 2
"""A ring has two connections however many ranks there are (github.com/NVIDIA/nccl/issues/986)."""
COPIES_COMMUNICATORS = 2
"""Further communicators where ranks have copies of the model under FSDP: among the ranks of a copy, and over the copies
(a process group for each side of the mesh, ``init_device_mesh`` of torch), beside all ranks', by which losses are
summed. Each has connections of its own, unless it is split off with shared resources, which torch does not ask for
(github.com/NVIDIA/nccl/issues/986). Cited: each group took 544 MB of two and 688 of more of 4 A100 with NVLink
(github.com/NVIDIA/nccl/issues/964), where 480 MiB are counted. Assumed: as many channels between nodes as within."""
NCCL_NVLINK_CHANNELS = 24
"""Channels over NVLink. Assumed: 16 to 32 are opened on A100 and H100."""
NCCL_PCIE_CHANNELS = 4
"""Channels over PCIe or host memory. Assumed: 2 to 8 are opened."""

RESERVE_FRACTION = 0.04
"""Part of the usable memory that ``fits`` keeps free. A choice, by what was measured: in all of our own runs on an
H200 and an H100 but one (4.5%) the device showed at most this much more than was planned (tests/gpu). It does not
cover the worst of what torch's native allocator reserves, nor libraries of other years (docs/accuracy.md)."""
MIN_RESERVE_BYTES = GIB // 2
"""Least bytes that ``fits`` keeps free. A choice: one large logits chunk."""


def workspace_sizes(gpu: Gpu) -> list[int]:
    """Bytes of each cuBLAS workspace, which count as allocated; a CPU has none."""
    if gpu.is_cpu:
        return []
    of_handle = HOPPER_CUBLAS_WORKSPACE_BYTES if _is_hopper_or_newer(gpu) else CUBLAS_WORKSPACE_BYTES
    return [_measured_bytes(gpu, "cublas_workspace_bytes", of_handle)] * NUM_CUBLAS_HANDLES


def workspace_bytes(gpu: Gpu) -> int:
    """Bytes of all cuBLAS workspaces."""
    return sum(workspace_sizes(gpu))


def context_bytes(gpu: Gpu) -> int:
    """Bytes of the CUDA context; a CPU has none."""
    if gpu.is_cpu:
        return 0
    is_large = _is_hopper_or_newer(gpu) and gpu.compute_capability != CONSUMER_BLACKWELL
    of_kind = HOPPER_CONTEXT_BYTES if is_large else CUDA_CONTEXT_BYTES
    return _measured_bytes(gpu, "context_bytes", MEASURED_CONTEXT_BYTES.get(gpu.id, of_kind))


def process_bytes(gpu: Gpu) -> int:
    """Bytes of the process itself where its device is the host's memory; else they are the host's alone."""
    return _measured_bytes(gpu, "process_bytes", CPU_PROCESS_BYTES) if gpu.is_cpu else 0


class ProcessGroup(Choice):
    """What a run of one GPU has of NCCL, as one of more does: nothing, a communicator, or one of stage 1 or 2; and
    what several have with copies of the model."""

    NONE = "none"
    ONE = "one"
    STAGE_1_2 = "stage 1 or 2"
    COPIES = "copies of the model"


def process_group(recipe: Recipe, num_gpus: int) -> ProcessGroup:
    """DeepSpeed and FSDP2 make one for a single GPU too."""
    if recipe.uses_deepspeed:
        return ProcessGroup.STAGE_1_2 if recipe.zero_stage in (1, 2) else ProcessGroup.ONE
    if not recipe.fsdp:
        return ProcessGroup.NONE
    return ProcessGroup.COPIES if recipe.sharing_ranks(num_gpus) < num_gpus else ProcessGroup.ONE


def nccl_bytes(cluster: Cluster, group: ProcessGroup) -> int:
    """Bytes of NCCL on each GPU: itself, and of each communicator two connections of a ring per channel. CPU ranks talk
    over gloo."""
    gpu, is_alone = cluster.node.gpu, cluster.num_gpus == 1
    if gpu.is_cpu or (is_alone and group is ProcessGroup.NONE):
        return 0
    is_hopper = _is_hopper_or_newer(gpu)
    of_engine = HOPPER_STAGE_1_2_BYTES if is_hopper and group is ProcessGroup.STAGE_1_2 else 0
    channels = NCCL_NVLINK_CHANNELS if cluster.node.uses_nvlink else NCCL_PCIE_CHANNELS
    connections = 0 if is_alone else channels * NCCL_RING_CONNECTIONS * NCCL_CONNECTION_BYTES
    further = COPIES_COMMUNICATORS * connections if group is ProcessGroup.COPIES else 0
    found = gpu.calibration
    if found is not None and found.num_ranks == cluster.num_gpus and (of_nccl := found.value("nccl_bytes")) is not None:
        return round(of_nccl.value) + of_engine + further
    itself = HOPPER_NCCL_COMMUNICATOR_BYTES if is_hopper else NCCL_COMMUNICATOR_BYTES
    return itself + of_engine + connections + further


def _is_hopper_or_newer(gpu: Gpu) -> bool:
    return gpu.compute_capability is not None and gpu.compute_capability >= HOPPER


def _measured_bytes(gpu: Gpu, name: str, assumed: int) -> int:
    return assumed if gpu.calibration is None else gpu.calibration.num_bytes(name, assumed)


def reserve_bytes(usable_bytes: int) -> int:
    """Bytes that a plan must leave free on a GPU to be called fitting."""
    return max(MIN_RESERVE_BYTES, round(RESERVE_FRACTION * usable_bytes))
