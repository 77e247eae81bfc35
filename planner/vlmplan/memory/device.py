"""From live tensors to the whole device: what the allocator reserves, CUDA context and NCCL, and whether it fits.

With expandable segments the allocator can give any free page back before it gives up, so tensors alone decide; with
the native allocator the replay of ``reservation`` decides, which may fail although the tensors would fit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from vlmplan.hardware import Cluster
from vlmplan.memory.allocator import SEGMENT_ROUNDING_BYTES, OutOfDeviceMemory
from vlmplan.memory.overhead import CUDA_CONTEXT_BYTES, nccl_bytes, reserve_bytes, workspace_bytes


class Verdict(Enum):
    """``FITS`` leaves the reserve free, ``TIGHT`` does not but stays below the usable memory."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """One GPU at its fullest. ``runs`` is False where the allocator runs out of memory."""

    allocated_bytes: int
    reserved_bytes: int
    context_bytes: int
    nccl_bytes: int
    usable_bytes: int
    reserve_bytes: int
    runs: bool

    @property
    def device_bytes(self) -> int:
        """What nvidia-smi shows for the process."""
        return self.reserved_bytes + self.context_bytes + self.nccl_bytes

    @property
    def free_bytes(self) -> int:
        """Usable bytes that are left; below zero where it does not fit."""
        return self.usable_bytes - self.device_bytes

    @property
    def fits_without_fragments(self) -> bool:
        """Whether tensors alone would leave the reserve free, and only the allocator's unused blocks do not."""
        bare = self.allocated_bytes + self.context_bytes + self.nccl_bytes
        return self.verdict is not Verdict.FITS and bare + self.reserve_bytes <= self.usable_bytes

    @property
    def verdict(self) -> Verdict:
        if not self.runs or self.free_bytes < 0:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if self.free_bytes >= self.reserve_bytes else Verdict.TIGHT


def device_memory(
    allocated_bytes: int, cluster: Cluster, replay: Callable[[int | None], int] | None = None
) -> DeviceMemory:
    """The device for a peak of ``allocated_bytes`` in tensors.

    ``replay(capacity)`` gives the peak of reserved bytes, or raises OutOfDeviceMemory; None: expandable segments.
    """
    usable, nccl = cluster.node.gpu.usable_bytes, _nccl_bytes(cluster)
    capacity = usable - CUDA_CONTEXT_BYTES - nccl
    runs = allocated_bytes <= capacity
    if replay is None:
        reserved = -(-allocated_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES
    else:
        try:
            reserved = replay(capacity if runs else None)
        except OutOfDeviceMemory:
            reserved, runs = replay(None), False
    return DeviceMemory(
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved,
        context_bytes=CUDA_CONTEXT_BYTES,
        nccl_bytes=nccl,
        usable_bytes=usable,
        reserve_bytes=reserve_bytes(usable),
        runs=runs,
    )


def budget_bytes(cluster: Cluster) -> int:
    """What the model's tensors may take on each GPU of a setup that fits: no reserve, context, NCCL or workspaces."""
    gpu = cluster.node.gpu
    capacity = gpu.usable_bytes - CUDA_CONTEXT_BYTES - _nccl_bytes(cluster)
    return capacity - reserve_bytes(gpu.usable_bytes) - workspace_bytes(gpu)


def _nccl_bytes(cluster: Cluster) -> int:
    return nccl_bytes(cluster.num_gpus, uses_nvlink=cluster.node.uses_nvlink)
