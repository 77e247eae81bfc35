"""A loop of one's own with accelerate."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from parts import Lines, make_model, options
from torch.utils.data import DataLoader

parser = options()
parser.add_argument("--fsdp", action="store_true")
given = parser.parse_args()
sharding = {"fsdp_version": 2, "auto_wrap_policy": "transformer_based_wrap", "cpu_ram_efficient_loading": False}
accelerator = Accelerator(
    gradient_accumulation_steps=given.accum,
    cpu=not torch.cuda.is_available(),
    fsdp_plugin=FullyShardedDataParallelPlugin(**sharding) if given.fsdp else None,
)
torch.manual_seed(0)
model = make_model(given)
if given.checkpointing:
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-4)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Lines(64), batch_size=2, shuffle=True))
model.train()
for number, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if number + 1 == 3 * given.accum:
        break
if given.save:
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained("out", is_main_process=accelerator.is_main_process)
