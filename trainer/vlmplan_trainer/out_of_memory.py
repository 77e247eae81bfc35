"""When memory runs out: which error says so, and what the rank leaves behind for ``vlmplan launch``.

torch raises ``OutOfMemoryError`` where its caching allocator can get no block, and a plain RuntimeError where a CPU
allocation fails, or where CUDA or one of its libraries has nothing left; ``memory_messages`` reads what they say.
"""

import os
import sys
import traceback

import torch

from vlmplan.errors import VlmplanError
from vlmplan.files import proc_bytes
from vlmplan.memory_messages import Kind, messages_in, requested_bytes
from vlmplan.plan import Plan
from vlmplan.run.shortage import Shortage, write_shortage
from vlmplan.run.training import EXIT_OUT_OF_MEMORY
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.options import Options


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out, of a GPU or of the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message.is_sure for message in messages_in(str(error)))


def report_out_of_memory(error: BaseException, plan: Plan, options: Options, meter: Meter) -> int:
    """Say where memory ran out and write it down; the exit code.

    Called while ``error`` is handled: its traceback still holds the tensors that were alive.
    """
    shortage = shortage_of(error, plan, meter)
    traceback.clear_frames(error.__traceback__)
    sys.stderr.write(f"vlmplan_trainer: {shortage.sentence()}\n")
    sys.stderr.flush()
    try:
        write_shortage(shortage, options.output_dir)
    except VlmplanError as problem:
        sys.stderr.write(f"vlmplan_trainer: {problem}\n")
    return EXIT_OUT_OF_MEMORY


def shortage_of(error: BaseException, plan: Plan, meter: Meter) -> Shortage:
    """Memory of this rank now, beside what the plan says of the phase."""
    is_planned_for_cpu = plan.hardware.vendor == "cpu"
    is_on_host = isinstance(error, MemoryError) or any(one.kind is Kind.HOST for one in messages_in(str(error)))
    taken = meter.bytes_in_progress()
    reserved: tuple[int | None, int | None] = (None, None)
    if is_planned_for_cpu:
        free, total = host_bytes(plan.hardware.gpus_per_node)
    else:
        free, total = torch.cuda.mem_get_info()
        reserved = (torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved())
    planned = {phase.name: phase.peak_bytes for phase in plan.expected.phases}
    return Shortage(
        rank=int(os.environ.get("RANK", "0")),
        phase=meter.in_progress,
        step=meter.step,
        is_on_host=is_on_host,
        allocated_bytes=None if taken is None else taken[0],
        peak_allocated_bytes=None if taken is None else taken[1],
        reserved_bytes=reserved[0],
        peak_reserved_bytes=reserved[1],
        requested_bytes=requested_bytes(str(error)),
        free_bytes=free,
        total_bytes=total,
        planned_bytes=planned.get(meter.in_progress or "") if is_on_host is is_planned_for_cpu else None,
    )


def host_bytes(num_ranks: int) -> tuple[int | None, int | None]:
    """(what this process can still get, what it may have in all) of the host's memory: by the limits that are set for
    it, and as one of ``num_ranks``. None where the system does not say (only Linux does)."""
    system = proc_bytes("/proc/meminfo")
    process = proc_bytes("/proc/self/status")
    free = [system["MemAvailable"] // num_ranks] if "MemAvailable" in system else []
    total = [system["MemTotal"] // num_ranks] if "MemTotal" in system else []
    for limit, taken in ((_limit("RLIMIT_AS"), "VmSize"), (_limit("RLIMIT_DATA"), "VmData")):
        if limit is not None and taken in process:
            free.append(max(0, limit - process[taken]))
            total.append(limit)
    return min(free, default=None), min(total, default=None)


def _limit(name: str) -> int | None:
    """The soft limit of that name; None where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft
