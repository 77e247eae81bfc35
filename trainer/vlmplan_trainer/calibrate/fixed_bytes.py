"""Bytes that are there whatever is trained: the CUDA context, cuBLAS's workspaces, the allocator's steps, the process.

``python -m vlmplan_trainer.calibrate.fixed_bytes DEVICE`` is a process that runs the kernels of a step, says what
torch's allocator holds, and waits; what the card has lost meanwhile, as another process sees it, less that, is the
context.
"""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import torch
from torch.nn import functional

from vlmplan_trainer.answering import take_stdout
from vlmplan_trainer.calibrate.clock import Measured

SMALL_TENSOR_BYTES, LARGE_TENSOR_BYTES = 1024, 2 * 2**20
WIDTH = 1024
STATUS = Path("/proc/self/status")


def fixed_bytes(device: torch.device) -> dict[str, Measured]:
    """What one process takes, as it is seen from this one. Nothing else may start or end on the card meanwhile."""
    before = _free_bytes(device)
    words = [sys.executable, "-m", "vlmplan_trainer.calibrate.fixed_bytes", device.type]
    with subprocess.Popen(  # noqa: S603 - this interpreter
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            told = json.loads(_of(process.stdout).readline() or "{}")
            taken = before - _free_bytes(device)
        finally:
            _of(process.stdin).close()
            process.kill()
    if "reserved_bytes" in told:
        told["context_bytes"] = taken - told.pop("reserved_bytes")
    if not told:
        raise RuntimeError("the process that was to be measured ended early")
    return {name: Measured(value, value, value, 1) for name, value in told.items()}


def _of(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def main() -> None:
    answer_to = take_stdout()  # DeepSpeed's log, for one, goes to standard output
    told = _on_gpu() if sys.argv[1] == "cuda" else _on_cpu()
    print(json.dumps(told), file=answer_to, flush=True)
    sys.stdin.read()


def _on_cpu() -> dict[str, Any]:
    """Resident memory once everything that a run imports is there."""
    for name in ("transformers", "deepspeed", "peft"):
        import_module(name)
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS"))
    return {"process_bytes": 1024 * int(line.split()[1])}


def _on_gpu() -> dict[str, Any]:
    """Steps of the allocator, the workspace of the first product, and what is reserved after kernels of every kind."""
    device = torch.device("cuda")
    small = torch.empty(SMALL_TENSOR_BYTES, dtype=torch.uint8, device=device)
    small_segment = torch.cuda.memory_reserved(device)
    large = torch.empty(LARGE_TENSOR_BYTES, dtype=torch.uint8, device=device)
    large_segment = torch.cuda.memory_reserved(device) - small_segment
    del small, large
    x = torch.randn(WIDTH, WIDTH, device=device, dtype=torch.bfloat16)
    before = torch.cuda.memory_allocated(device)
    out = x @ x
    workspace = torch.cuda.memory_allocated(device) - before - out.numel() * out.element_size()
    _kernels_of_a_step(device)
    torch.cuda.synchronize(device)
    return {
        "allocator_small_segment_bytes": small_segment,
        "allocator_large_segment_bytes": large_segment,
        "cublas_workspace_bytes": workspace,
        "reserved_bytes": torch.cuda.memory_reserved(device),
    }


def _kernels_of_a_step(device: torch.device) -> None:
    """Products, attention, norms, losses and an update: their code is loaded into the context at first use."""
    layer = torch.nn.Linear(WIDTH, WIDTH, device=device, dtype=torch.bfloat16)
    x = torch.randn(1, 8, WIDTH // 8, WIDTH, device=device, dtype=torch.bfloat16, requires_grad=True)
    heads = functional.rms_norm(functional.silu(layer(x)), (WIDTH,)).view(1, 8, -1, 128)
    seen = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).reshape(-1, WIDTH)
    target = torch.zeros(len(seen), dtype=torch.long, device=device)
    functional.cross_entropy(seen.float(), target).backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    torch.optim.AdamW(layer.parameters(), fused=True).step()


if __name__ == "__main__":
    main()
