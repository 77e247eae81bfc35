"""From live tensors to the whole device: what the allocator reserves, CUDA context and NCCL, and whether it fits.

With expandable segments the allocator can give any free page back before it gives up, so tensors alone decide, and
``DeviceMemory`` reserves their bytes. While there is room torch keeps more, and nvidia-smi shows it
(``reserved_with_room``): each stream keeps the pages it has mapped, and a page of 20 MiB (2 MiB for small tensors)
stays as long as anything lives on it. With the native allocator the replay of ``reservation`` decides, which may fail
although the tensors would fit.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from vlmplan.engines.parameters import ParameterTable
from vlmplan.hardware import Cluster
from vlmplan.memory.allocator import SEGMENT_ROUNDING_BYTES, OutOfDeviceMemory
from vlmplan.memory.overhead import (
    ProcessGroup,
    context_bytes,
    nccl_bytes,
    process_bytes,
    process_group,
    reserve_bytes,
    workspace_bytes,
)
from vlmplan.recipe import Recipe

PADDED_GROUPS = 8
"""More than there are parameter groups of an optimizer, each padded to two elements a rank."""


class Verdict(Enum):
    """``FITS`` leaves the reserve free, ``TIGHT`` does not but stays below the usable memory."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


class DeviceMemory(NamedTuple):
    """One GPU at its fullest. ``runs`` is False where the allocator runs out of memory.

    A rank on a CPU has ``process_bytes`` for Python and libraries, but neither a CUDA context nor NCCL.
    """

    allocated_bytes: int
    reserved_bytes: int
    context_bytes: int
    nccl_bytes: int
    process_bytes: int
    usable_bytes: int
    reserve_bytes: int
    runs: bool

    @property
    def device_bytes(self) -> int:
        """What nvidia-smi shows for the process, without pages that expandable segments keep while there is room; of a
        rank on a CPU, its resident memory."""
        return self.reserved_bytes + self.overhead_bytes

    @property
    def overhead_bytes(self) -> int:
        """What is neither a tensor nor kept by the allocator for one."""
        return self.context_bytes + self.nccl_bytes + self.process_bytes

    @property
    def free_bytes(self) -> int:
        """Usable bytes that are left; below zero where it does not fit."""
        return self.usable_bytes - self.device_bytes

    @property
    def fits_without_fragments(self) -> bool:
        """Whether tensors alone would leave the reserve free, and only the allocator's unused blocks do not."""
        bare = self.allocated_bytes + self.overhead_bytes
        return self.verdict is not Verdict.FITS and bare + self.reserve_bytes <= self.usable_bytes

    @property
    def verdict(self) -> Verdict:
        if not self.runs or self.free_bytes < 0:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if self.free_bytes >= self.reserve_bytes else Verdict.TIGHT


def device_memory(
    allocated_bytes: int, cluster: Cluster, group: ProcessGroup, replay: Callable[[int | None], int] | None = None
) -> DeviceMemory:
    """The device for a peak of ``allocated_bytes`` in tensors of a run with such a process group.

    ``replay(capacity)`` gives the peak of reserved bytes, or raises OutOfDeviceMemory; None: expandable segments.
    """
    gpu = cluster.node.gpu
    usable = gpu.usable_bytes
    capacity = usable - _overhead_bytes(cluster, group)
    runs = allocated_bytes <= capacity
    if replay is None:
        reserved = _expandable_bytes(allocated_bytes)
    else:
        try:
            reserved = replay(capacity if runs else None)
        except OutOfDeviceMemory:
            reserved, runs = replay(None), False
    return DeviceMemory(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved,
        context_bytes=context_bytes(gpu),
        nccl_bytes=nccl_bytes(cluster, group),
        process_bytes=process_bytes(gpu),
        usable_bytes=usable,
        reserve_bytes=reserve_bytes(usable),
        runs=runs,
    )


def reserved_with_room(device: DeviceMemory, replay: Callable[[int | None], int]) -> int:
    """What expandable segments reserve at most, by ``replay(capacity)``: pages stay mapped until the device is full."""
    try:
        return max(device.reserved_bytes, replay(device.usable_bytes - device.overhead_bytes if device.runs else None))
    except OutOfDeviceMemory:
        return device.reserved_bytes


def fitting_bytes(cluster: Cluster) -> int:
    """The most that a GPU of the cluster shows where a setup fits."""
    usable = cluster.node.gpu.usable_bytes
    return usable - reserve_bytes(usable)


def shows_at_most(
    device_bytes: int,
    allocated_bytes: int,
    cluster: Cluster,
    group: ProcessGroup,
    stays_within: Callable[[int | None, int], bool] | None,
) -> bool:
    """Whether the GPU shows no more than ``device_bytes`` by ``device_memory`` of the same.
    ``stays_within(capacity, most)``: whether a replay of the capacity reserves no more than the second; None:
    expandable segments.

    Where the GPU has less than ``device_bytes``, a replay of its capacity stays within them wherever it ends, and one
    without limits says what a GPU shows on which it does not.
    """
    overhead = _overhead_bytes(cluster, group)
    capacity, most = cluster.node.gpu.usable_bytes - overhead, device_bytes - overhead
    if _expandable_bytes(allocated_bytes) > most:
        return False
    if stays_within is None or (allocated_bytes <= capacity and stays_within(capacity, most)):
        return True
    return most > capacity and stays_within(None, most)


def expandable_device_bytes(allocated_bytes: int, cluster: Cluster, group: ProcessGroup) -> int:
    """``device_bytes`` alone, with expandable segments: a search asks for nothing else, thousands of times."""
    return _expandable_bytes(allocated_bytes) + _overhead_bytes(cluster, group)


def _expandable_bytes(allocated_bytes: int) -> int:
    """What expandable segments reserve: they grow and shrink by whole pages."""
    return -(-allocated_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


def budget_bytes(cluster: Cluster, group: ProcessGroup) -> int:
    """What the model's tensors may take on each GPU of a setup that fits: no reserve, context, NCCL or workspaces."""
    gpu = cluster.node.gpu
    capacity = gpu.usable_bytes - _overhead_bytes(cluster, group)
    return capacity - reserve_bytes(gpu.usable_bytes) - workspace_bytes(gpu)


def room_for_weights(table: ParameterTable, recipe: Recipe, cluster: Cluster, *, other_models: int) -> int | None:
    """``Engine.room_bytes`` of stages 1 and 2, which ask the driver what is free (``available_memory`` in
    ``stage_1_and_2.py``): what tensors may take beside ``other_models``. None where all weights have room twice, in
    other engines, and where the host is the device."""
    if recipe.zero_stage not in (1, 2) or cluster.node.gpu.is_cpu:
        return None
    room = (
        cluster.node.gpu.usable_bytes - _overhead_bytes(cluster, process_group(recipe, cluster.num_gpus)) - other_models
    )
    padded = table.num_trained + PADDED_GROUPS * 2 * cluster.num_gpus
    return room if table.total_bytes + padded * table.trained_dtype.num_bytes > room else None


def _overhead_bytes(cluster: Cluster, group: ProcessGroup) -> int:
    gpu = cluster.node.gpu
    return context_bytes(gpu) + nccl_bytes(cluster, group) + process_bytes(gpu)
