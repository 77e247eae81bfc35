"""Why memory ran out, as far as the message alone proves it: how the GPU was divided when nothing was left.

By torch's ``CUDACachingAllocator.cpp``: before it gives up, the allocator has given back to the driver every cached
block that is not split, so that what is reserved but unallocated lies between tensors in use. Some always does: pieces
are the reason only where joined they would also have left what a plan that fits keeps free. ``Process N`` are the
processes on the GPU by NVML; the one with this process's pid is called "this process", but in a container pids differ,
and then this one is among the others.
"""

from dataclasses import dataclass
from enum import Enum

from vlmplan.memory.overhead import reserve_bytes
from vlmplan.memory_messages import Kind, MemoryMessage
from vlmplan.units import GIB

OWN_OVERHEAD_BYTES = 3 * GIB
"""What one process holds beside torch's allocator at the most: CUDA's context with loaded kernels, cuBLAS, NCCL's
buffers. Assumed: 0.3 to 1.5 GiB are seen in the published messages that name it, and plans count up to 2.7 (an H100
whose ranks have three NCCL communicators over NVLink, for copies of the model)."""


class Cause(Enum):
    TRUE_NEED = "true_need"
    FRAGMENTATION = "fragmentation"
    FULL_CARD = "full_card"
    """In one piece there would have been room for the request, and next to none after it."""
    OTHER_PROCESSES = "other_processes"
    MEMORY_LIMIT = "memory_limit"
    SMALLER_CARD = "smaller_card"
    """Than the one that is planned with."""
    HOST_MEMORY = "host_memory"
    SHARED_MEMORY = "shared_memory"
    DISK = "disk"
    KILLED = "killed"
    UNKNOWN = "unknown"


OF_KIND = {
    Kind.HOST: Cause.HOST_MEMORY,
    Kind.SHARED_MEMORY: Cause.SHARED_MEMORY,
    Kind.DISK: Cause.DISK,
    Kind.KILLED: Cause.KILLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The GPU when the request failed; None is what the message does not tell.

    ``overhead_bytes`` are this process's beside torch's allocator, ``other_bytes`` other processes', ``pids`` theirs
    where they are known. ``missing_bytes`` would have had to be free besides; ``left_bytes`` would have been left, had
    all that torch kept unused been one piece with what was free.
    """

    overhead_bytes: int | None = None
    other_bytes: int = 0
    pids: tuple[int, ...] = ()
    missing_bytes: int | None = None
    left_bytes: int | None = None


def balance_of(message: MemoryMessage) -> Balance:
    """How the GPU is divided."""
    reserved = message.allocated_bytes if message.reserved_bytes is None else message.reserved_bytes
    own, others = _own_and_others(message, reserved)
    other_bytes = sum(size for _, size in others)
    if message.total_bytes is not None and message.free_bytes is not None and reserved is not None:
        unlisted = message.total_bytes - message.free_bytes - other_bytes - (reserved if own is None else own)
        if unlisted > OWN_OVERHEAD_BYTES:
            other_bytes += unlisted
    left = _left(message)
    return Balance(
        overhead_bytes=None if own is None or reserved is None else own - reserved,
        other_bytes=other_bytes,
        pids=tuple(pid for pid, _ in others),
        missing_bytes=None if left is None else max(0, -left),
        left_bytes=None if left is None else max(0, left),
    )


def _own_and_others(message: MemoryMessage, reserved: int | None) -> tuple[int | None, list[tuple[int, int]]]:
    """What this process holds, and (pid, bytes) of the others."""
    others, own = list(message.processes), message.in_use_bytes
    if own is not None and (reserved is None or own >= reserved):
        return own, others
    able = [other for other in others if reserved is not None and other[1] >= reserved]
    if not able:
        return None, others
    mine = min(able, key=lambda one: one[1])
    return mine[1], [other for other in others if other is not mine]


def _left(message: MemoryMessage) -> int | None:
    """Of what was free and what torch kept unused, after the request; below 0 where that was too little."""
    if message.requested_bytes is None or message.free_bytes is None:
        return None
    return message.free_bytes + (message.unallocated_bytes or 0) - message.requested_bytes


def cause_of(message: MemoryMessage, balance: Balance) -> Cause:
    """The reason that the message proves, the one first with which the request would have been granted."""
    if message.kind in OF_KIND:
        return OF_KIND[message.kind]
    requested, free = message.requested_bytes, message.free_bytes
    if requested is None:
        return Cause.UNKNOWN
    allowed, held = message.allowed_bytes, message.reserved_bytes or message.allocated_bytes
    if allowed is not None and held is not None and held + requested > allowed and (free is None or free >= requested):
        return Cause.MEMORY_LIMIT
    if free is None:
        return Cause.UNKNOWN
    has_pieces = bool(message.unallocated_bytes) and balance.missing_bytes == 0
    if has_pieces and (message.total_bytes is None or (balance.left_bytes or 0) >= reserve_bytes(message.total_bytes)):
        return Cause.FRAGMENTATION
    if balance.other_bytes and free + balance.other_bytes >= requested:
        return Cause.OTHER_PROCESSES
    return Cause.FULL_CARD if has_pieces else Cause.TRUE_NEED
