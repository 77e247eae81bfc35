"""What ZeRO-3's hooks take on the host, by module: the source of ``HOOK_SECONDS`` in the planner's ``timing/rates.py``.

``python -m vlmplan_trainer.calibrate.hooks SECONDS`` runs the real DeepSpeed on one CPU rank, on rows of 20 and of 120
modules of 16 x 16 weights, and prints as JSON what each further module adds to forward and to backward, in seconds of
CPU time of the thread that asks for the work: waiting does not count, the product itself is a microsecond or two. It is
a process of its own, as DeepSpeed serves one kind of device in each.
"""

import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vlmplan_trainer.answering import take_stdout
from vlmplan_trainer.calibrate.clock import Measured, measured

WIDTH, FEW, MANY, NUM_STEPS, NUM_WARM = 16, 20, 120, 15, 5
MOST_ROUNDS = 5
WHOLE, SHARDED = 10**9, 0
"""``stage3_param_persistence_threshold``."""
CASES = {
    "plain": ("frozen", None, WHOLE),
    "plain trained": ("trained", None, WHOLE),
    "empty": ("empty", 3, WHOLE),
    "whole": ("frozen", 3, WHOLE),
    "trained": ("trained", 3, WHOLE),
    "gathered": ("frozen", 3, SHARDED),
}
"""(kind of modules, stage, threshold): without DeepSpeed, then with hooks around modules without weights, with frozen
weights that are whole, with trained ones, and with frozen ones that are gathered."""


def main() -> None:
    answer_to = take_stdout()
    warnings.filterwarnings("ignore")
    import torch

    from vlmplan_trainer.engines.make import init_gloo

    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ.update(names)
    with tempfile.TemporaryDirectory() as folder:
        init_gloo(init_method=f"file://{Path(folder, 'rendezvous')}", rank=0, world_size=1)
        found = hook_seconds(float(sys.argv[1]))
    with answer_to:
        json.dump({f"hook_{name}": value.as_json() for name, value in found.items()}, answer_to)
    answer_to.close()
    os._exit(0)  # process groups of DeepSpeed are slow to fall


def hook_seconds(limit_seconds: float) -> dict[str, Measured]:
    """By the names of the planner's ``HOOK_SECONDS``, each of one to five rounds of all cases."""
    rounds: list[dict[str, float]] = []
    end = time.monotonic() + limit_seconds
    while not rounds or (time.monotonic() < end and len(rounds) < MOST_ROUNDS):
        rounds.append(hooks_of({name: added_seconds(*case) for name, case in CASES.items()}))
    return {name: measured([one[name] for one in rounds]) for name in rounds[0]}


def hooks_of(added: dict[str, tuple[float, float]]) -> dict[str, float]:
    """What hooks add, of what a module of each case adds to forward and to backward. Below zero is noise.

    A trained weight is handed over in backward: what it adds to a frozen one with hooks, less what it adds without.
    """
    plain, trained_plain, empty, whole, trained, gathered = (added[name] for name in CASES)
    found = {
        "forward": whole[0] - plain[0],
        "forward_empty": empty[0],
        "backward": whole[1] - plain[1],
        "backward_empty": empty[1],
        "gather": gathered[0] - whole[0],
        "gradient": (trained[1] - whole[1]) - (trained_plain[1] - plain[1]),
    }
    return {name: max(0.0, seconds) for name, seconds in found.items()}


def added_seconds(kind: str, stage: int | None, threshold: int) -> tuple[float, float]:
    """CPU seconds of forward and of backward of one more module of a kind."""
    few, many = (step_seconds(kind, count, stage, threshold) for count in (FEW, MANY))
    forward, backward = ((more - less) / (MANY - FEW) for less, more in zip(few, many, strict=True))
    return forward, backward


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
        model_parameters=trained,  # pyright: ignore[reportArgumentType] - its annotation is too narrow
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


if __name__ == "__main__":
    main()
