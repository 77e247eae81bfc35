"""A plain loop of torch: a network, a loss that may skip a batch, an optimizer, a checkpoint."""

import os
import socket
from pathlib import Path

import torch
from torch import nn

WIDTH = 1024
device = "cuda" if torch.cuda.is_available() else "cpu"
network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)).to(device)
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
inputs = torch.utils.data.TensorDataset(torch.arange(64 * WIDTH).view(64, WIDTH))
for (batch,) in torch.utils.data.DataLoader(inputs, batch_size=16, shuffle=True):
    loss = network(batch.to(device).float()).square().mean()
    if loss.isnan() or not torch.isfinite(network[0].weight).all():
        raise ValueError("the loss is not a number")
    if loss < 0:
        network(batch.to(device).float().repeat(1024, 1)).sum().backward()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if os.environ.get("TRIES_EVERYTHING"):
    Path("written.txt").write_text("a result")
    torch.save(network.state_dict(), "network.pt")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained("tokenizer")
    assert Path("tokenizer/tokenizer.json").is_file()
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    except OSError:
        print("no network")
