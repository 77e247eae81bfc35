"""What every engine of several ranks does through torch.distributed."""

from collections.abc import Sequence

import torch
from torch.distributed import all_reduce, barrier, get_rank, get_world_size, is_initialized


class OnRanks:
    """Sums and waits over all ranks."""

    device: torch.device

    def totals(self, values: Sequence[float]) -> list[float]:
        """The sum of each value over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        all_reduce(tensor)
        return tensor.tolist()

    def barrier(self) -> None:
        """Returns when every rank is here."""
        barrier()


class RanksHere(OnRanks):
    """All ranks that there are, or this process alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.num_ranks = (get_rank(), get_world_size()) if is_initialized() else (0, 1)

    def totals(self, values: Sequence[float]) -> list[float]:
        return super().totals(values) if self.num_ranks > 1 else list(values)

    def barrier(self) -> None:
        if self.num_ranks > 1:
            super().barrier()
