"""What FSDP1 and FSDP2 share: a rank's number, how losses and micro batches are counted, the files of a checkpoint, and
which layers are units."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import get_rank, get_world_size
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.engines.plain import PlainEngine
from vlmplan_trainer.engines.ranks import OnRanks

SHARD_FILE = "rank-{rank:05}-of-{num_ranks:05}.pt"
"""A rank's part of a checkpoint."""


class ShardedEngine(OnRanks, PlainEngine):
    """A rank with its shards, by which a module that torch has wrapped or changed is trained."""

    kind: str
    """What the engine is called."""

    def __init__(self, module: LossModule, recipe: Recipe, *, device: torch.device, weight_decay: float) -> None:
        self.rank, self.num_ranks = get_rank(), get_world_size()
        self._num_sharing = recipe.sharing_ranks(self.num_ranks)
        super().__init__(self._sharded(module, recipe, device), recipe, device=device, weight_decay=weight_decay)
        self._num_micro_batches = 0

    def _sharded(self, module: LossModule, recipe: Recipe, device: torch.device) -> Any:
        """The module in shards."""
        raise NotImplementedError

    @property
    def _root(self) -> Any:
        """The module with the methods that sharding has given it."""
        return self._module

    @property
    def loss_scale(self) -> int:
        """Gradients are averaged over ranks; the loss is a sum over them."""
        return self.num_ranks

    @property
    def _reduces(self) -> bool:
        """Whether the micro batch that was counted last is reduced."""
        return self._recipe.sync_each_batch or self._num_micro_batches % self._recipe.grad_accum == 0

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        self._num_micro_batches += torch.is_grad_enabled()
        return super().forward(batch, num_items) * self.loss_scale

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _write_shard(self, folder: Path, content: Mapping[str, Any]) -> None:
        """Copies of the model are the same: the ranks of the first write it."""
        if self.rank >= self._num_sharing:
            return
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(content, self._shard_path(folder))

    def _read_shard(self, folder: Path) -> Any:
        """Raises InputError for a checkpoint of another number of ranks that share a copy."""
        path = self._shard_path(folder)
        if not path.exists():
            raise InputError(
                f"{folder} has no {path.name}: it was written by another number of GPUs, or by no {self.kind}"
            )
        return torch.load(path, map_location="cpu", mmap=self.device.type != "cpu", weights_only=True)

    def _shard_path(self, folder: Path) -> Path:
        return folder / SHARD_FILE.format(rank=self.rank % self._num_sharing, num_ranks=self._num_sharing)


def device_mesh(device_type: str, recipe: Recipe, num_ranks: int) -> DeviceMesh:
    """All ranks in a row; where there are copies of the model, a row for each copy, as accelerate has it
    (``dp_replicate`` and ``dp_shard`` in its ``parallelism_config.py``), and as torch groups the GPUs of nodes for
    FSDP1 (``_init_intra_and_inter_node_groups`` in ``fsdp/_init_utils.py`` 2.13)."""
    num_sharing = recipe.sharing_ranks(num_ranks)
    if num_sharing == num_ranks:
        return init_device_mesh(device_type, (num_ranks,))
    sizes = num_ranks // num_sharing, num_sharing
    return init_device_mesh(device_type, sizes, mesh_dim_names=("dp_replicate", "dp_shard"))


def units_of(module: LossModule, recipe: Recipe) -> list[nn.Module]:
    """The layers that are units."""
    return unit_layers(around_embedding(module.model) if recipe.shard_units.of_language_alone else module)


def last_of_lists(module: nn.Module) -> set[nn.Module]:
    """The last module of each list of them."""
    return {one[-1] for one in module.modules() if isinstance(one, nn.ModuleList) and len(one)}


def unit_layers(module: nn.Module) -> list[nn.Module]:
    """All layers that can be run again in backward, in order."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def around_embedding(model: Any) -> nn.Module:
    """The module that the input embedding is a child of: the language model."""
    table = model.get_input_embeddings()
    return next(module for module in model.modules() if any(child is table for child in module.children()))
