"""A loop of one's own: torch alone, DistributedDataParallel, FSDP1 or FSDP2."""

import os

import torch
from parts import Lines, make_model, options
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.data import DataLoader, DistributedSampler

parser = options()
parser.add_argument("--engine", choices=("alone", "ddp", "fsdp1", "fsdp"), default="alone")
given = parser.parse_args()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
if given.engine != "alone":
    torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
model = make_model(given).to(device)
model.train()
if given.checkpointing:
    model.gradient_checkpointing_enable()
if given.engine == "fsdp":
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
if given.engine == "fsdp1":
    layers = ModuleWrapPolicy({type(model.model.layers[0])})
    model = FullyShardedDataParallel(model, auto_wrap_policy=layers, device_id=torch.device(device))
trained = nn.parallel.DistributedDataParallel(model) if given.engine == "ddp" else model
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-4)
lines = Lines(64)
sampler = DistributedSampler(lines, seed=1) if torch.distributed.is_initialized() else None
for number, batch in enumerate(DataLoader(lines, batch_size=2, sampler=sampler)):
    loss = trained(**{name: value.to(device) for name, value in batch.items()}).loss / given.accum
    loss.backward()
    if (number + 1) % given.accum == 0:
        if given.engine == "fsdp1":
            model.clip_grad_norm_(1.0)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if number + 1 == 3 * given.accum:
        break
model.eval()
with torch.no_grad():
    for batch in DataLoader(Lines(4), batch_size=2):
        print(trained(**{name: value.to(device) for name, value in batch.items()}).loss.item())
