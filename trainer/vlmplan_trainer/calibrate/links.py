"""Collectives between the GPUs of this machine, or between two CPU ranks over gloo.

``python -m vlmplan_trainer.calibrate.links RANK RANKS FOLDER DEVICE SECONDS`` is one rank; ``link_rates`` starts all of
them and ends them however it ends itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch

from vlmplan_trainer.calibrate.clock import Measured, measured, wait_for

LEAST_BYTES = 1024
GPU_BYTES, CPU_BYTES = (32 * 2**20, 256 * 2**20), (2**20, 8 * 2**20)
"""A middle and a large message: their difference leaves out what every collective takes, however small."""
NUM_WARM = 3
MOST_REPETITIONS = 30
RANK_TIMEOUT_SECONDS = 60
ANSWER = "answer.json"
RING = ("all_gather", "reduce_scatter")


def link_rates(device: torch.device, num_ranks: int, limit_seconds: float) -> dict[str, Measured]:
    """What each of ``num_ranks`` GPUs sends in a second, what the smallest all-gather takes, and NCCL's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "vlmplan_trainer.calibrate.links"]
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(num_ranks):
                own = [str(rank), str(num_ranks), folder, device.type, str(limit_seconds)]
                ranks.append(subprocess.Popen([*words, *own], stdout=subprocess.DEVNULL))  # noqa: S603 - this interpreter
            codes = [rank.wait() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        if any(codes):
            raise RuntimeError(f"the ranks ended with {', '.join(map(str, codes))}")
        found = json.loads(Path(folder, ANSWER).read_text(encoding="utf-8"))
    return {name: Measured(**value) for name, value in found.items()}


def main() -> None:
    rank, num_ranks, folder, kind, limit_seconds = sys.argv[1:]
    found = _of_rank(int(rank), int(num_ranks), Path(folder), kind, float(limit_seconds))
    if rank == "0":
        text = json.dumps({name: value.as_json() for name, value in found.items()})
        Path(folder, ANSWER).write_text(text, encoding="utf-8")
    sys.stderr.flush()
    os._exit(0)


def _of_rank(rank: int, num_ranks: int, folder: Path, kind: str, limit_seconds: float) -> dict[str, Measured]:
    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank)
    used = 0
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.ones(1, device=device)
        used = _used_beside_torch(device)
    torch.distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=RANK_TIMEOUT_SECONDS),
    )
    sizes = GPU_BYTES if device.type == "cuda" else CPU_BYTES
    cases = [(name, size) for name in ("all_gather", "reduce_scatter", "all_reduce") for size in sizes]
    each = limit_seconds / (len(cases) + 1)
    seconds = {case: _collective_seconds(*case, num_ranks, device, each) for case in cases}
    smallest = _collective_seconds("all_gather", LEAST_BYTES, num_ranks, device, each)
    found = {"collective_seconds": measured(smallest)} | rates(seconds, sizes, num_ranks)
    if device.type == "cuda":
        nccl = float(_used_beside_torch(device) - used)
        found["nccl_bytes"] = Measured(nccl, nccl, nccl, 1)
    return found


def rates(seconds: dict[tuple[str, int], list[float]], sizes: tuple[int, int], num_ranks: int) -> dict[str, Measured]:
    """Bytes that each rank sends in a second, by the difference of two messages of S bytes: (N-1)/N of S in an
    all-gather and a reduce-scatter, twice that in an all-reduce."""
    smaller, larger = sizes
    sent = (larger - smaller) * (num_ranks - 1) / num_ranks

    def of(name: str, rounds: int) -> list[float]:
        less = measured(seconds[name, smaller]).value
        return [rounds * sent / max(more - less, more / 10) for more in seconds[name, larger]]

    ring = [rate for name in RING for rate in of(name, 1)]
    return {"ring_bandwidth": measured(ring), "sum_bandwidth": measured(of("all_reduce", 2))}


def _collective_seconds(
    name: str, num_bytes: int, num_ranks: int, device: torch.device, limit_seconds: float
) -> list[float]:
    """Seconds of collectives whose larger side is ``num_bytes``, one after the other, by this rank's clock: each waits
    for all before the clock starts. All ranks take as many."""
    whole = torch.zeros(num_bytes // 4 // num_ranks * num_ranks, device=device)
    part = torch.zeros(len(whole) // num_ranks, device=device)
    calls = {
        "all_gather": lambda: torch.distributed.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: torch.distributed.reduce_scatter_tensor(part, whole),
        "all_reduce": lambda: torch.distributed.all_reduce(whole),
    }
    for _ in range(NUM_WARM):
        calls[name]()
    found: list[float] = []
    goes_on, end = torch.ones(1, device=device), time.monotonic() + limit_seconds
    while goes_on.item() and len(found) < MOST_REPETITIONS:
        torch.distributed.barrier()
        wait_for(device)
        start = time.perf_counter()
        calls[name]()
        wait_for(device)
        found.append(time.perf_counter() - start)
        goes_on.fill_(float(time.monotonic() < end))
        torch.distributed.all_reduce(goes_on, op=torch.distributed.ReduceOp.MIN)
    return found


def _used_beside_torch(device: torch.device) -> int:
    """Bytes of the device that are taken and that torch's allocator does not hold."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


if __name__ == "__main__":
    main()
