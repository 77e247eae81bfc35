"""What all ranks know together."""

from typing import Any

import torch


def of_all_ranks(value: Any) -> list[Any]:
    """What each rank gives, in the order of ranks; every rank calls it."""
    if not torch.distributed.is_initialized():
        return [value]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found
