"""A tiny Llama under the real ZeRO-3 on two CPU ranks: which weights are whole when forward and backward end, and what
an engine in float32 holds when it is built.

``run`` starts this file, and the file one process per rank, because DeepSpeed keeps global state.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

NUM_RANKS = 2


def run(config: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, int]:
    """Bytes of whole weights after forward, by ``memory_efficient_linear`` and activation checkpointing; of those that
    only the end of backward releases; of everything after building an engine, by precision."""
    with tempfile.TemporaryDirectory() as directory:
        result, model = Path(directory) / "result.json", Path(directory) / "config.json"
        model.write_text(json.dumps(config))
        environment = {**environment, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(result), str(model), directory]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
        return json.loads(result.read_text())


def zero_config(*, is_efficient: bool, precision: str = "bf16") -> dict[str, object]:
    is_pure = precision == "bf16-pure"
    states = {"bf16_master_weights_and_grads": is_pure, "bf16_optimizer_states": is_pure}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": precision != "fp32", **(states if is_pure else {})},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 1_000_000,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
            "memory_efficient_linear": is_efficient,
        },
    }


def storages_of_size(counter, sizes):
    return sum(num_bytes for num_bytes in list(counter.sizes.values()) if num_bytes in sizes)


def at_rest(read):
    """The least that ``read()`` gives within a moment: gloo's threads let go of what they sent a little later."""
    gc.collect()
    least = read()
    for _ in range(10):
        time.sleep(0.02)
        least = min(least, read())
    return least


def note_unreleased(engine, outcomes):
    """Put the bytes of weights that are whole when the last gradients have been reduced into ``outcomes``."""
    offload = engine.optimizer.parameter_offload
    release = offload.release_backward_leftovers

    def noted():
        outcomes["unreleased"] = sum(p.numel() * p.element_size() for p in engine.module.parameters())
        release()

    offload.release_backward_leftovers = noted


def built_bytes(settings, precision: str) -> int:
    """Bytes that a new engine holds."""
    import deepspeed
    import torch
    import transformers

    from vlmplan_trainer.measure import LiveStorages

    with LiveStorages() as counter:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
        model = model.float() if precision == "fp32" else model.bfloat16()
        optimizer = torch.optim.AdamW(model.parameters())
        config = zero_config(is_efficient=True, precision=precision)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        found = at_rest(lambda: counter.num_bytes)
    engine.destroy()
    return found


def train(rank: int, result: str, model_path: str, directory: str) -> None:
    import deepspeed
    import torch
    import transformers

    from vlmplan_trainer.engines.make import init_gloo
    from vlmplan_trainer.measure import LiveStorages

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(NUM_RANKS))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # DeepSpeed asks for them and uses the file
    init_gloo(init_method=f"file://{directory}/rendezvous", rank=rank, world_size=NUM_RANKS)
    outcomes = {}
    for is_efficient in (False, True):
        for checkpoints in (False, True):
            torch.manual_seed(0)
            settings = json.loads(Path(model_path).read_text())
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).bfloat16()
            sizes = {p.numel() * 2 for p in model.parameters() if p.dim() == 2}
            if checkpoints:
                model.gradient_checkpointing_enable()
            optimizer = torch.optim.AdamW(model.parameters())
            config = zero_config(is_efficient=is_efficient)
            engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
            ids = torch.arange(8).view(1, 8)
            note_unreleased(engine, outcomes)
            for _ in range(3):
                counter = LiveStorages()
                with counter:
                    loss = engine(input_ids=ids, labels=ids).loss
                whole = at_rest(partial(storages_of_size, counter, sizes))
                engine.backward(loss)
                engine.step()
            outcomes[f"{is_efficient} {checkpoints}"] = whole
            engine.destroy()
    for precision in ("bf16", "bf16-pure", "fp32"):
        outcomes[f"built {precision}"] = built_bytes(settings, precision)
    if rank == 0:
        Path(result).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    import deepspeed  # noqa: F401  imported once: both ranks begin with it
    import torch.multiprocessing
    import transformers  # noqa: F401

    torch.multiprocessing.start_processes(train, tuple(sys.argv[1:]), nprocs=NUM_RANKS, start_method="fork")
