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

WIDTH, FEW, MANY = 16, 20, 120
NUM_WARM, LEAST_SWEEPS, MOST_SWEEPS = 3, 5, 50
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
    """Seconds of hooks by the names of the planner's ``HOOK_SECONDS``: medians and quartiles of sweeps, each a step of
    all cases.

    A hook is the difference of four of these times. Those of one sweep are taken one right after the other, so that a
    machine whose speed drifts, as virtual ones do, is as fast in all of them.
    """
    end = time.monotonic() + limit_seconds
    steps = {(name, count): Step(*CASES[name], count=count) for name in CASES for count in (FEW, MANY)}
    for _ in range(NUM_WARM):
        sweep(steps)
    found: list[dict[str, float]] = []
    while len(found) < LEAST_SWEEPS or (time.monotonic() < end and len(found) < MOST_SWEEPS):
        found.append(hooks_of(sweep(steps)))
    return {name: at_least_nothing(measured([one[name] for one in found])) for name in found[0]}


def at_least_nothing(found: Measured) -> Measured:
    """Below zero is noise."""
    value, low, high = (max(0.0, seconds) for seconds in (found.value, found.low, found.high))
    return Measured(value, low, high, found.repetitions)


def sweep(steps: "dict[tuple[str, int], Step]") -> dict[str, tuple[float, float]]:
    """CPU seconds of forward and of backward of one more module of each case."""
    took = {key: step.seconds() for key, step in steps.items()}
    added: dict[str, tuple[float, float]] = {}
    for name in CASES:
        forward, backward = (
            (more - less) / (MANY - FEW) for less, more in zip(took[name, FEW], took[name, MANY], strict=True)
        )
        added[name] = forward, backward
    return added


def hooks_of(added: dict[str, tuple[float, float]]) -> dict[str, float]:
    """What hooks add, of what a module of each case adds to forward and to backward.

    A trained weight is handed over in backward: what it adds to a frozen one with hooks, less what it adds without.
    """
    plain, trained_plain, empty, whole, trained, gathered = (added[name] for name in CASES)
    return {
        "forward": whole[0] - plain[0],
        "forward_empty": empty[0],
        "backward": whole[1] - plain[1],
        "backward_empty": empty[1],
        "gather": gathered[0] - whole[0],
        "gradient": (trained[1] - whole[1]) - (trained_plain[1] - plain[1]),
    }


class Step:
    """Steps over ``count`` modules of a kind.

    Stage 3 puts a function of its own in place of ``F.linear`` (``zero/partition_parameters.py``), for the whole
    process and as long as it lasts: it belongs to the hooks, and what is measured without DeepSpeed has torch's.
    """

    def __init__(self, kind: str, stage: int | None, threshold: int, *, count: int) -> None:
        import torch
        from torch.nn import functional

        self._torchs_linear = functional.linear if stage is None else None
        module = row(kind, count)
        made = plain(module) if stage is None else sharded(module, stage, threshold)
        self._forward, self._backward, self._step = made
        self._batch = torch.ones(1, WIDTH)

    def seconds(self) -> tuple[float, float]:
        """CPU seconds of forward and of backward of one step."""
        from torch.nn import functional

        linear = functional.linear
        functional.linear = self._torchs_linear or linear
        try:
            start = time.thread_time()
            loss = self._forward(self._batch).sum()
            between = time.thread_time()
            self._backward(loss)
            end = time.thread_time()
            self._step()
        finally:
            functional.linear = linear
        return between - start, end - between


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
