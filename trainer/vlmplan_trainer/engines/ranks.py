"""What every engine of several ranks does through torch.distributed."""

from collections.abc import Sequence

import torch
from torch.distributed import all_reduce, barrier


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
