"""``DistributedDataParallel``: plain PyTorch on several ranks, whose gradients are averaged before each step."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import broadcast, get_rank, get_world_size
from torch.nn.parallel import DistributedDataParallel

from vlmplan.recipe import Recipe
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.engines.plain import PlainEngine
from vlmplan_trainer.engines.ranks import OnRanks


class DdpEngine(OnRanks, PlainEngine):
    """Gradients are views of the reducer's buckets (``gradient_as_bucket_view``) from the beginning to the end, so that
    a rank holds them once: the reducer takes over those that are there when it is made, and ``step`` fills them with
    zeros in place of giving them up, as micro batches without a reduction would put others beside the buckets.

    ``find_unused_parameters``: a rank whose samples have no image gives the vision tower no gradient. Buckets then stay
    as they are made, in the reverse order of the parameters, and are never built anew.

    Trained weights are the first rank's, sent in place. ``init_sync`` would send frozen ones too, which every rank has
    read from the same files, by way of flat copies of 250 MiB.

    Where the recipe has no ``gradient_as_bucket_view`` all of this is as torch does by itself, and Hugging Face's
    Trainer with it: gradients beside the buckets, set free by the update, and ``init_sync``.
    """

    def __init__(self, module: LossModule, recipe: Recipe, *, device: torch.device, weight_decay: float) -> None:
        super().__init__(module, recipe, device=device, weight_decay=weight_decay)
        self.rank, self.num_ranks = get_rank(), get_world_size()
        self._has_views = recipe.gradient_as_bucket_view
        if self._has_views:
            for parameter in self._trained:
                broadcast(parameter.data, src=0)
            self._make_gradients()
        with warnings.catch_warnings():
            # torch 2.13 has another name for broadcast_buffers, which 2.11 does not know.
            warnings.simplefilter("ignore", FutureWarning)
            self._ddp = DistributedDataParallel(
                module,
                device_ids=None if device.type == "cpu" else [device],
                broadcast_buffers=False,  # none changes in training
                init_sync=not self._has_views,
                gradient_as_bucket_view=self._has_views,
                find_unused_parameters=True,
            )
        self._num_micro_batches = 0

    def _make_gradients(self) -> None:
        """Zeros that take no memory: one number of each type, as large as a weight by its strides."""
        zeros = {parameter.dtype: parameter.new_zeros(()) for parameter in self._trained}
        for parameter in self._trained:
            parameter.grad = zeros[parameter.dtype].expand_as(parameter)

    @property
    def loss_scale(self) -> int:
        """Gradients are averaged over ranks; the loss is a sum over them."""
        return self.num_ranks

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        """Gradients are reduced behind the last micro batch of a step alone."""
        self._num_micro_batches += torch.is_grad_enabled()
        is_last = self._num_micro_batches % self._recipe.grad_accum == 0
        with self._autocast(), nullcontext() if is_last else self._ddp.no_sync():
            return self._ddp(batch, num_items) * self.loss_scale

    def _forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=not self._has_views)

    def save(self, folder: Path) -> None:
        """All ranks hold the same: the first one writes."""
        if self.rank == 0:
            super().save(folder)

    def weights(self) -> dict[str, Tensor] | None:
        return super().weights() if self.rank == 0 else None
