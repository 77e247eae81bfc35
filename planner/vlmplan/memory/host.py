"""Bytes of host memory on one node, while loading and in steady state.

Symbols as in ``engines``; ``L`` ranks on the node. Sources: deepspeed 0.19.8 ``stage_1_and_2.py`` and ``stage3.py``
(pinned buffers), ``swap_tensor/`` for NVMe.
"""

from dataclasses import dataclass

from vlmplan.memory.optimizer_states import paged_bytes
from vlmplan.memory.parameters import ParameterTable, partition_size, sharded_elements
from vlmplan.recipe import Offload, Recipe
from vlmplan.units import GIB

PROCESS_BYTES = 3 * GIB
"""Resident memory of one training process before it holds anything of the model: Python, torch, CUDA's host side and
the workers' share. Assumed: 2 to 4 GiB are seen."""
NVME_BUFFER_FRACTION = 0.25
"""Part of what is swapped to NVMe that stays in host buffers on its way. Assumed: DeepSpeed keeps a few sub-groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of one node."""

    load_bytes: int
    steady_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(self.load_bytes, self.steady_bytes)


def host_memory(table: ParameterTable, recipe: Recipe, *, num_ranks: int, ranks_per_node: int) -> HostMemory:
    """Host bytes of one node.

    Loading: safetensors files are mapped and copied to the GPU tensor by tensor, so a rank holds one tensor at a
    time; with parameters offloaded its shards gather on the host. Stage 3 moves all its shards through the host
    once (``defragment`` in ``zero/utils.py``).
    """
    base = ranks_per_node * PROCESS_BYTES
    offloaded = ranks_per_node * _offloaded_bytes(table, recipe, num_ranks)
    paged = ranks_per_node * paged_bytes(recipe, _updated_shapes(table, recipe, num_ranks))
    passing = table.largest_bytes
    if recipe.zero_stage == 3:
        passing += sharded_elements(table.numels, num_ranks) * table.trained_dtype.num_bytes
    return HostMemory(load_bytes=base + ranks_per_node * passing, steady_bytes=base + offloaded + paged)


def with_devices(host: HostMemory, ranks_per_node: int, *, load_bytes: int, peak_bytes: int) -> HostMemory:
    """``host`` where the ranks' devices are the host itself: each rank's ``load_bytes`` while loading and
    ``peak_bytes`` in all, which hold its process too, take the place of ``PROCESS_BYTES``."""
    return HostMemory(
        load_bytes=host.load_bytes + ranks_per_node * (load_bytes - PROCESS_BYTES),
        steady_bytes=host.steady_bytes + ranks_per_node * (peak_bytes - PROCESS_BYTES),
    )


def _updated_shapes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> list[tuple[int, ...]]:
    if recipe.zero_stage in (None, 0):
        return [entry.parameter.shape for entry in table.entries if entry.parameter.requires_grad]
    return [(partition_size(table.num_trained, num_ranks),)]


def _offloaded_bytes(table: ParameterTable, recipe: Recipe, num_ranks: int) -> int:
    """Pinned bytes of one rank.

    Optimizer offload, per element of the rank's part: master weight 4, its gradient 4, two moments 8, the 16-bit
    copy that is sent back 2 (stages 1 and 2) or the 16-bit gradient 2 (stage 3), and under accumulation 2 more for
    gradients kept between micro batches (stages 1 and 2); one staging buffer of the largest parameter.
    Parameter offload: the 16-bit shards of all weights.
    """
    p = table.trained_dtype.num_bytes
    shard = partition_size(table.num_trained, num_ranks)
    total = 0
    if recipe.offload_optimizer is not Offload.NONE:
        m = recipe.master_dtype.num_bytes
        keeps_gradients = recipe.grad_accum > 1 and recipe.zero_stage != 3
        states = shard * (4 * m + p + (p if keeps_gradients else 0)) + table.largest_trained * p
        total += round(states * NVME_BUFFER_FRACTION) if recipe.offload_optimizer is Offload.NVME else states
    if recipe.offload_params is not Offload.NONE:
        weights = sum(-(-entry.parameter.num_bytes // num_ranks) for entry in table.entries)
        total += round(weights * NVME_BUFFER_FRACTION) if recipe.offload_params is Offload.NVME else weights
    return total
