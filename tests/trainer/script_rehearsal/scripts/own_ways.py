"""A loop in a way of its own: a generator of the card, inference mode, a compiled loss, and a batch that follows from
the memory that it measures."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, MIB = 512, 2**20
device = torch.device("cuda")
generator = torch.Generator(device=device).manual_seed(1)
network = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)


@torch.compile
def loss_of(samples: torch.Tensor) -> torch.Tensor:
    return network(samples).square().mean()


def peak_bytes(size: int) -> int:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode():
        network(torch.empty(size, WIDTH, device=device))
    return torch.cuda.max_memory_allocated() - before


size = 64
while peak_bytes(size) < 32 * MIB:
    size *= 2
assert size == 2048
assert peak_bytes(size) == 36 * MIB  # 2048 rows of 4 bytes: the input, and two of four times its width
samples = TensorDataset(torch.arange(4 * size * WIDTH).view(-1, WIDTH))
for (batch,) in DataLoader(samples, batch_size=size):
    noise = torch.randn(batch.shape, device=device, generator=generator)
    loss = loss_of(batch.to(device) + noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"{loss:.3f}")
