"""A language model on lines of numbers with transformers' Trainer."""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments


class Lines(torch.utils.data.Dataset):
    def __init__(self, count: int, length: int) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(self.length) % 90 + index % 7
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


parser = argparse.ArgumentParser()
parser.add_argument("--model", default="llama")
parser.add_argument("--output", default="out")
parser.add_argument("--deepspeed")
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--checkpointing", action="store_true")
given = parser.parse_args()
arguments = TrainingArguments(
    given.output,
    per_device_train_batch_size=2,
    max_steps=3,
    gradient_accumulation_steps=given.accum,
    gradient_checkpointing=given.checkpointing,
    deepspeed=given.deepspeed,
    logging_steps=1,
    eval_strategy="steps",
    eval_steps=3,
    save_strategy="no",
    use_cpu=not torch.cuda.is_available(),
)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(given.model), dtype=torch.float32)
trainer = Trainer(model, arguments, train_dataset=Lines(64, 128), eval_dataset=Lines(4, 128))
trainer.train()
