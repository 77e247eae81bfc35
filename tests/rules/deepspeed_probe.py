"""Real DeepSpeed engines on one CPU process: which combinations run, and which message the others raise.

``run`` starts this file as a process of its own, because DeepSpeed keeps global state.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


def run(environment: Mapping[str, str]) -> dict[str, str]:
    """The outcome of every probe by name: ``runs``, or the message."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "outcomes.json"
        more = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "1"}
        more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # DeepSpeed asks for them and uses the file
        command = [sys.executable, __file__, str(result), directory]
        subprocess.run(command, env={**environment, **more}, check=True, capture_output=True, timeout=300)
        return json.loads(result.read_text())


def main(result: str, directory: str) -> None:
    warnings.filterwarnings("ignore")
    import bitsandbytes
    import deepspeed
    import torch
    import transformers

    from vlmplan_trainer.engines.make import init_gloo

    logging.disable(logging.WARNING)
    init_gloo(init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    outcomes: dict[str, str] = {}

    def adafactor(parameters):
        return transformers.Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False)

    def probe(name, stage, make=torch.optim.AdamW, *, zero=None, bf16=None, **top):
        size = 64
        layers = [torch.nn.Linear(size, size, bias=False) for _ in range(2)]
        module = torch.nn.Sequential(*layers).bfloat16()
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True, **(bf16 or {})},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 10_000, **(zero or {})},
            **top,
        }
        try:
            optimizer = make(list(module.parameters()))
            engine, *_ = deepspeed.initialize(model=module, config=config, optimizer=optimizer)
            loss = engine(torch.ones(1, size, dtype=torch.bfloat16)).float().sum()
            engine.backward(loss)
            engine.step()
            outcomes[name] = "runs"
            states = {key for state in optimizer.state.values() for key, v in state.items() if torch.is_tensor(v)}
            outcomes[f"{name}: states"] = " ".join(sorted(states - {"step", "RMS"}))
        except Exception as error:
            outcomes[name] = f"{type(error).__name__}: {error}"

    mixed = torch.nn.Sequential(torch.nn.Linear(8, 8).bfloat16(), torch.nn.Linear(8, 8))
    engine, *_ = deepspeed.initialize(
        model=mixed,
        optimizer=torch.optim.SGD(mixed.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 10_000},
        },
    )
    outcomes["float32 beside bf16"] = " ".join(sorted({str(weight.dtype) for weight in engine.module.parameters()}))
    pure = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    makers = {
        "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        "AdamW8bit": bitsandbytes.optim.AdamW8bit,
        "PagedAdamW8bit": bitsandbytes.optim.PagedAdamW8bit,
        "Adafactor": adafactor,
    }
    for stage in range(4):
        probe(f"pure bf16 at stage {stage}", stage, bf16=pure)
        for name, make in makers.items():
            probe(f"{name} at stage {stage}", stage, make)
    nvme = {"offload_optimizer": {"device": "nvme", "nvme_path": directory, "pin_memory": False}}
    free = {"zero_force_ds_cpu_optimizer": False}
    probe("AdamW of torch offloaded", 2, zero=OFFLOAD)
    probe("pure bf16 of torch's AdamW offloaded", 2, zero=OFFLOAD, bf16=pure, **free)
    probe("odd all-gather bucket", 2, zero={"allgather_bucket_size": 7})
    probe("untested optimizer not allowed", 2, makers["SGD"], zero_allow_untested_optimizer=False)
    probe("parameters offloaded at stage 2", 2, zero={"offload_param": {"device": "cpu"}})
    probe("nvme at stage 2", 2, zero=nvme, **free)
    probe("optimizer offloaded at stage 0", 0, zero=OFFLOAD, **free)
    Path(result).write_text(json.dumps(outcomes))
    os._exit(0)  # process groups of DeepSpeed are slow to fall


if __name__ == "__main__":
    main(*sys.argv[1:])
