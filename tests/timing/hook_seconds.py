"""What ZeRO-3's hooks take on the host, per module: where ``HOOK_SECONDS`` of ``timing/rates.py`` are from.

``python tests/timing/hook_seconds.py [RANKS]`` runs the real DeepSpeed on CPU ranks, on rows of 20 and of 120 modules
of 16 x 16 weights, and prints what each further module adds to forward and to backward, in microseconds of CPU time of
the thread that asks for the work: waiting does not count, the product itself is a microsecond or two.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH, FEW, MANY, NUM_STEPS, NUM_WARM = 16, 20, 120, 25, 5
WHOLE, SHARDED = 10**9, 0
"""``stage3_param_persistence_threshold``."""
CASES = (
    ("Linear, without DeepSpeed", "frozen", None, WHOLE),
    ("trained Linear, without DeepSpeed", "trained", None, WHOLE),
    ("module without weights", "empty", 3, WHOLE),
    ("frozen Linear, whole", "frozen", 3, WHOLE),
    ("trained Linear, whole", "trained", 3, WHOLE),
    ("frozen Linear, gathered", "frozen", 3, SHARDED),
    ("trained Linear, gathered", "trained", 3, SHARDED),
)


def main(rank: int, num_ranks: int, rendezvous: str) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_PORT": 0}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"})
    warnings.filterwarnings("ignore")
    import torch

    from vlmplan_trainer.engines.make import init_gloo

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    init_gloo(init_method=f"file://{rendezvous}", rank=rank, world_size=num_ranks)
    for name, kind, stage, threshold in CASES:
        few, many = (step_seconds(kind, count, stage, threshold) for count in (FEW, MANY))
        forward, backward = (1e6 * (more - less) / (MANY - FEW) for less, more in zip(few, many, strict=True))
        if rank == 0:
            print(f"{name:34} forward {forward:6.1f} us, backward {backward:6.1f} us", flush=True)
    os._exit(0)  # process groups of DeepSpeed are slow to fall


def step_seconds(kind: str, count: int, stage: int | None, threshold: int) -> tuple[float, float]:
    """CPU seconds of forward and of backward over ``count`` modules of a kind: the lower quartiles of many steps."""
    import torch

    module = row(kind, count)
    forward, backward, step = plain(module) if stage is None else sharded(module, stage, threshold)
    batch = torch.ones(1, WIDTH)
    found: list[tuple[float, float]] = []
    for _ in range(NUM_STEPS):
        start = time.thread_time()
        loss = forward(batch).sum()
        between = time.thread_time()
        backward(loss)
        found.append((between - start, time.thread_time() - between))
        step()
    firsts, seconds = zip(*found[NUM_WARM:], strict=True)
    return sorted(firsts)[len(firsts) // 4], sorted(seconds)[len(seconds) // 4]


def row(kind: str, count: int) -> Any:
    from torch import nn

    middle = [nn.Identity() if kind == "empty" else nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)]
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), *middle, nn.Linear(WIDTH, WIDTH, bias=False))
    if kind == "frozen":
        for one in middle:
            one.requires_grad_(False)
    return module


def plain(module: Any) -> tuple[Callable[..., Any], ...]:
    return module, lambda loss: loss.backward(), lambda: module.zero_grad()


def sharded(module: Any, stage: int, threshold: int) -> tuple[Callable[..., Any], ...]:
    import deepspeed
    import torch

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    sizes = {
        "reduce_bucket_size": 10**8,
        "stage3_param_persistence_threshold": threshold,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
    }
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=trained,
        optimizer=torch.optim.SGD(trained, lr=1e-6),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": stage, **sizes},
        },
        dist_init_required=False,
    )
    return engine, engine.backward, engine.step


def start(num_ranks: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Path(folder, "rendezvous")
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), str(num_ranks), str(rendezvous)])
            for rank in range(num_ranks)
        ]
        for rank in ranks:
            rank.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    else:
        start(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
