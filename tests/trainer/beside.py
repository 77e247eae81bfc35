"""Tokens a second of the bundled trainer beside Hugging Face's Trainer and TRL's SFTTrainer.

    PYTHONPATH=tests:tests/trainer python tests/trainer/beside.py [--pairs 5] [--engines plain,zero-2] [--steps 20]

The same tiny Llama, tokens, batch, loss and engine, on one GPU where there is one and else on one CPU rank. The
trainings of a pair follow each other in one process and take turns in being first, so that what else the machine does
meets both. A training's seconds a step are the median after the first ones. On a CPU the ratio of processor seconds is
printed too: it does not change with what else runs there. Without TRL it is left out, and said.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["DS_ACCELERATOR"] = "cpu"
NUM_WARMUP = 5
MICRO_BATCH, GRAD_ACCUM = 2, 2
VOCABULARY = 300
"""Of the tiny model; tokens are below it."""
SIZES = (
    {"seq_len": 1024, "hidden_size": 1024, "num_layers": 8}
    if ON_GPU
    else {
        "seq_len": 64,
        "hidden_size": 256,
        "num_layers": 4,
    }
)
PRECISIONS = {"plain": "bf16-pure" if ON_GPU else "fp32", "zero-2": "bf16", "zero-3": "bf16"}
"""Without an engine all three have weights, gradients and states of one type: autocast is not the same thing in all."""
PEERS = {"transformers": "Hugging Face Trainer", "trl": "TRL SFTTrainer"}


def tokens(count: int) -> torch.Tensor:
    """The samples: (count, seq_len), the same in every run."""
    drawn = torch.Generator().manual_seed(0)
    return torch.randint(20, VOCABULARY, (count, SIZES["seq_len"]), generator=drawn)


class Chats(torch.utils.data.Dataset):
    """Samples as the loops take them."""

    def __init__(self, count: int) -> None:
        self.ids = tokens(count)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def plan_of(model: Path, engine: str, num_steps: int) -> Any:
    """The plan of a run, which has the ds_config.json for all three."""
    from vlmplan.plan import plan_from_estimate
    from vlmplan.request import parse
    from vlmplan.requested import requested_estimate

    given = {
        "model": str(model),
        "gpu": "local:1" if ON_GPU else "cpu:1",
        "method": "full",
        "zero_stage": engine.partition("-")[2] or "none",
        "precision": PRECISIONS[engine],
        "micro_batch": MICRO_BATCH,
        "grad_accum": GRAD_ACCUM,
        "seq_len": SIZES["seq_len"],
        "num_samples": MICRO_BATCH * GRAD_ACCUM * num_steps,
        "loss": "full",
        "fuses_optimizer": True,  # as in Hugging Face's Trainer; plain PyTorch's own default is slower
        "activation_checkpointing": False,
    }
    estimate, _ = requested_estimate(parse(given), ())
    return plan_from_estimate(estimate)


@dataclass
class Clock:
    """The moments at which steps ended, by the wall clock and by the processor's."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def tick(self) -> None:
        if ON_GPU:
            torch.cuda.synchronize()  # a loop that only starts kernels is not faster
        self.wall.append(time.perf_counter())
        self.processor.append(time.process_time())

    def medians(self) -> tuple[float, float]:
        """Seconds a step: wall, processor."""
        columns = (self.wall[NUM_WARMUP:], self.processor[NUM_WARMUP:])
        wall, processor = (statistics.median(b - a for a, b in pairwise(column)) for column in columns)
        return wall, processor


def train_own(plan: Any, num_steps: int, clock: Clock) -> None:
    """The bundled trainer."""
    from vlmplan_trainer.engines.make import device_of, make_engine, start_process_group
    from vlmplan_trainer.loop import Rates, StepRules, Trainer
    from vlmplan_trainer.measure import Meter
    from vlmplan_trainer.models.load import load_model

    start_process_group(plan)
    data = Chats(plan.workload.num_samples)
    engine = make_engine(load_model(plan).model, plan, device=device_of(plan), weight_decay=0.0)
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0, shuffle=True)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=MICRO_BATCH, sampler=sampler)
    loader.set_epoch = sampler.set_epoch
    rates = Rates(peak=1e-3, num_steps=num_steps, warmup_fraction=0.0, schedule="constant")
    rules = StepRules(grad_accum=GRAD_ACCUM, samples_per_step=MICRO_BATCH * GRAD_ACCUM)
    trainer = Trainer(engine, Meter(engine.device, num_steps=0), rates, rules)
    for _ in trainer.epoch(loader):
        clock.tick()


def train_theirs(trainer: str, plan: Any, num_steps: int, clock: Clock, folder: str) -> None:
    """One of the others."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    class Ticks(TrainerCallback):
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            clock.tick()

    uses_engine = plan.recipe.zero_stage is not None
    if uses_engine:
        import deepspeed

        deepspeed.init_distributed("nccl" if ON_GPU else "gloo", auto_mpi_discovery=False, verbose=False)
    is_float32 = plan.recipe.precision.value == "fp32"
    shared: dict[str, Any] = {
        "deepspeed": dict(plan.ds_config) if uses_engine else None,
        "use_cpu": not ON_GPU,
        "bf16": uses_engine,
        "per_device_train_batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": GRAD_ACCUM,
        "max_steps": num_steps,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    data = Chats(plan.workload.num_samples)
    if trainer == "transformers":
        from transformers import Trainer, TrainingArguments

        arguments = TrainingArguments(folder, **shared)
        model = AutoModelForCausalLM.from_pretrained(
            plan.model_source, dtype=torch.float32 if is_float32 else torch.bfloat16
        )
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Ticks()]).train()
    else:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        arguments = SFTConfig(
            folder, **shared, max_length=None, packing=False, dataset_kwargs={"skip_prepare_dataset": True}
        )
        model = AutoModelForCausalLM.from_pretrained(
            plan.model_source, dtype=torch.float32 if is_float32 else torch.bfloat16
        )
        tokenizer = AutoTokenizer.from_pretrained(plan.model_source)
        rows = Dataset.from_dict({"input_ids": data.ids.tolist(), "labels": data.ids.tolist()})
        SFTTrainer(
            model=model, args=arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[Ticks()]
        ).train()


def run_pairs(peer: str, engine: str, num_pairs: int, num_steps: int, model: Path) -> None:
    """The pairs of one peer on one engine, in this process; their seconds a step as the last line, in JSON."""
    from trainer_runs import free_port

    if engine != "plain":
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        os.environ["MASTER_PORT"] = str(free_port())
    plan = plan_of(model, engine, num_steps)
    pairs: list[dict[str, tuple[float, float]]] = []
    for place in range(num_pairs):
        found: dict[str, tuple[float, float]] = {}
        for trainer in ("vlmplan", peer) if place % 2 == 0 else (peer, "vlmplan"):
            clock = Clock()
            with tempfile.TemporaryDirectory() as folder:
                if trainer == "vlmplan":
                    train_own(plan, num_steps, clock)
                else:
                    train_theirs(trainer, plan, num_steps, clock, folder)
            found[trainer] = clock.medians()
        pairs.append(found)
    print(json.dumps(pairs))


def compared(peer: str, engine: str, num_pairs: int, num_steps: int, model: Path) -> str:
    """What the pairs of one peer on one engine were, in a line."""
    words = ["--peer", peer, "--engines", engine, "--pairs", str(num_pairs), "--steps", str(num_steps)]
    command = [sys.executable, __file__, *words, "--model", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"{PEERS[peer]}, {engine}: failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    pairs = [(pair["vlmplan"], pair[peer]) for pair in json.loads(done.stdout.splitlines()[-1])]
    per_step = MICRO_BATCH * GRAD_ACCUM * SIZES["seq_len"]
    ours, theirs = (statistics.median(per_step / one[0] for one in column) for column in zip(*pairs, strict=True))
    by_wall, by_processor = ([their[i] / our[i] for our, their in pairs] for i in (0, 1))
    text = f"{PEERS[peer]}, {engine}: {ours:,.0f} beside {theirs:,.0f} tokens/s, {_ratios(by_wall)}"
    return text if ON_GPU else f"{text}; processor seconds {_ratios(by_processor)}"


def _ratios(found: Sequence[float]) -> str:
    return f"ratio {statistics.median(found):.2f} ({' '.join(f'{one:.2f}' for one in found)})"


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description="The bundled trainer beside Hugging Face's Trainer and TRL.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--engines", default="plain,zero-2")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.peer:
        run_pairs(asked.peer, asked.engines, asked.pairs, asked.steps, asked.model)
        return
    from vlmplan_trainer.models.tiny import write_tiny_model

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "llama"
        write_tiny_model(model, "llama", hidden_size=SIZES["hidden_size"], num_layers=SIZES["num_layers"])
        print(f"one {'GPU' if ON_GPU else 'CPU rank'}, {asked.steps} steps; a ratio above 1: vlmplan is faster")
        for peer in PEERS:
            if importlib.util.find_spec(peer) is None:
                print(f"{PEERS[peer]}: {peer} is not installed here")
                continue
            for engine in asked.engines.split(","):
                print(compared(peer, engine, asked.pairs, asked.steps, model), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
