"""Steps a second of this loop beside Hugging Face's Trainer: same model, data, ds_config and ranks, in one run.

python -m torch.distributed.run --nproc_per_node=2 tests/trainer/beside_hugging_face.py FOLDER
"""

import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import torch

NUM_STEPS, NUM_WARMUP = 40, 5
SEQ_LEN, MICRO_BATCH, GRAD_ACCUM = 64, 2, 2


class Chats(torch.utils.data.Dataset):
    """Tokens drawn once, all of one length."""

    def __init__(self, vocab_size: int, count: int) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocab_size, (count, SEQ_LEN), generator=drawn)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def own_seconds(plan, data) -> float:
    """The median step of the bundled trainer, the first ones left out."""
    from vlmplan_trainer.engines.make import device_of, make_engine, start_process_group
    from vlmplan_trainer.loop import Rates, Trainer
    from vlmplan_trainer.measure import Meter
    from vlmplan_trainer.models.load import load_model

    start_process_group(plan)
    engine = make_engine(load_model(plan).model, plan, device=device_of(plan), weight_decay=0.0)
    sampler = torch.utils.data.DistributedSampler(data, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=MICRO_BATCH, sampler=sampler)
    loader.set_epoch = sampler.set_epoch
    rates = Rates(peak=1e-3, num_steps=NUM_STEPS, warmup_fraction=0.0, schedule="constant")
    trainer = Trainer(engine, Meter(engine.device, num_steps=0), rates, grad_accum=GRAD_ACCUM, samples_per_step=8)
    seconds = [report.seconds for report in trainer.epoch(loader)]
    return statistics.median(seconds[NUM_WARMUP:])


def their_seconds(plan, data, folder: str) -> float:
    from transformers import AutoModelForCausalLM, TrainerCallback, TrainingArguments
    from transformers import Trainer as HuggingFaceTrainer

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_args, **_kwargs) -> None:
            times.append(time.perf_counter())

    model = AutoModelForCausalLM.from_pretrained(plan.model_source, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    config = {key: value for key, value in plan.ds_config.items() if key not in ("fp16",)}
    arguments = TrainingArguments(
        folder,
        deepspeed=config,
        use_cpu=True,
        bf16=True,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GRAD_ACCUM,
        max_steps=NUM_STEPS,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        gradient_checkpointing=True,
    )
    HuggingFaceTrainer(model=model, args=arguments, train_dataset=data, callbacks=[Clock()]).train()
    return statistics.median(after - before for before, after in pairwise(times[NUM_WARMUP:]))


def main(folder: str) -> None:
    from trainer_runs import planned

    from vlmplan_trainer.models.tiny import write_tiny_model

    rank = int(os.environ["RANK"])
    model = Path(folder) / f"llama-{rank}"  # each rank writes its own, so that nobody reads half a model
    write_tiny_model(model, "llama", hidden_size=256, num_layers=4)
    plan = planned(model, zero_stage="2", method="full", num_samples=320, global_batch=8, micro_batch=MICRO_BATCH)
    data = Chats(300, 320)
    ours = own_seconds(plan, data)
    theirs = their_seconds(plan, data, folder)
    if rank == 0:
        print(
            f"this loop {1 / ours:.2f} steps/s, Hugging Face's Trainer {1 / theirs:.2f} steps/s: {theirs / ours:.2f}x"
        )


if __name__ == "__main__":
    main(sys.argv[1])
