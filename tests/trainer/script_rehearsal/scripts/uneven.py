"""Rows of two lengths, few of them long, padded to the longest of a batch."""

import torch
from torch import nn

SHORT, LONG, WIDTH = 100, 4000, 64


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.arange(LONG if index == 399 else SHORT)}


def padded(rows: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)


model = nn.Sequential(nn.Embedding(LONG, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in torch.utils.data.DataLoader(Rows(), batch_size=4, collate_fn=padded):
    model(batch.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
