"""A language model on lines of numbers, or one that sees on pictures, with transformers' Trainer."""

import torch
from parts import Collator, Lines, Pictures, make_model, options, sees
from transformers import Trainer, TrainingArguments

parser = options()
parser.add_argument("--deepspeed")
given = parser.parse_args()
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    max_steps=3,
    gradient_accumulation_steps=given.accum,
    gradient_checkpointing=given.checkpointing,
    deepspeed=given.deepspeed,
    logging_steps=1,
    eval_strategy="no" if sees(given) else "steps",
    eval_steps=3,
    save_strategy="steps" if given.save else "no",
    save_steps=3,
    use_cpu=not torch.cuda.is_available(),
    remove_unused_columns=False,
)
torch.manual_seed(0)
model = make_model(given)
if sees(given):
    trainer = Trainer(model, arguments, train_dataset=Pictures(), data_collator=Collator(given.model))
else:
    trainer = Trainer(model, arguments, train_dataset=Lines(64), eval_dataset=Lines(16))
trainer.train()
