"""A loop of one's own around ``deepspeed.initialize``."""

import deepspeed
import torch
from parts import Lines, make_model, options
from torch.utils.data import DataLoader, DistributedSampler
from transformers.integrations import HfDeepSpeedConfig

parser = options()
parser.add_argument("--stage", type=int, required=True)
parser.add_argument("--local_rank", type=int)
given = parser.parse_args()
settings = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": given.accum,
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": given.stage,
        "overlap_comm": False,
        "allgather_bucket_size": 200_000,
        "reduce_bucket_size": 200_000,
        "stage3_prefetch_bucket_size": 50_000,
        "stage3_param_persistence_threshold": 1_000,
    },
}
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
kept = HfDeepSpeedConfig(settings)  # so that from_pretrained makes shards under stage 3
torch.manual_seed(0)
model = make_model(given)
if given.checkpointing:
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-4)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
lines = Lines(64)
for number, batch in enumerate(DataLoader(lines, batch_size=2, sampler=DistributedSampler(lines, seed=1))):
    loss = engine(**{name: value.to(engine.device) for name, value in batch.items()}).loss
    engine.backward(loss)
    engine.step()
    if number + 1 == 3 * given.accum:
        break
if given.save:
    engine.save_checkpoint("out")
