"""FSDP1 (``FullyShardedDataParallel``): one flat parameter of the weights of each layer, and of all others in the root.

As accelerate wraps a model (1.15 ``accelerator.py``, ``prepare_model``): by the classes of its layers, under autocast
in mixed precision. Weights are sharded in the type that the optimizer updates, and gathered in that of the computation.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import get_rank, get_world_size
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, Offload, ShardUnits
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.engines.fsdp2 import SHARD_FILE, around_embedding, unit_layers
from vlmplan_trainer.engines.optimizers import keeping_settings
from vlmplan_trainer.engines.plain import PlainEngine
from vlmplan_trainer.engines.ranks import OnRanks
from vlmplan_trainer.models.load import torch_dtype

PREFETCHES: Mapping[FlatParameters, BackwardPrefetch | None] = {
    FlatParameters.ON_DEMAND: None,
    FlatParameters.BACKWARD_PRE: BackwardPrefetch.BACKWARD_PRE,
    FlatParameters.BACKWARD_POST: BackwardPrefetch.BACKWARD_POST,
}


class FlatEngine(OnRanks, PlainEngine):
    """A rank's shards of flat parameters, which a checkpoint keeps as they are."""

    def __init__(self, module: LossModule, recipe: Recipe, *, device: torch.device, weight_decay: float) -> None:
        self.rank, self.num_ranks = get_rank(), get_world_size()
        first: dict[int, str] = {}
        named = module.model.state_dict(keep_vars=True)
        self._first_name = {name: first.setdefault(id(weight), name) for name, weight in named.items()}
        wrapped: Any = flat_sharded(module, recipe, device)
        super().__init__(wrapped, recipe, device=device, weight_decay=weight_decay)
        self._num_micro_batches = 0

    @property
    def loss_scale(self) -> int:
        return self.num_ranks

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        self._num_micro_batches += torch.is_grad_enabled()
        return super().forward(batch, num_items) * self.loss_scale

    def backward(self, loss: Tensor) -> None:
        is_last = self._num_micro_batches % self._recipe.grad_accum == 0
        root: Any = self._module  # the wrapped module
        with nullcontext() if is_last or self._recipe.sync_each_batch else root.no_sync():
            super().backward(loss)

    @property
    def _shards(self) -> list[Tensor]:
        units = FullyShardedDataParallel.fsdp_modules(self._module)
        return [unit._handle.flat_param.data for unit in units if unit._handle is not None]

    def save(self, folder: Path) -> None:
        """Every rank writes its shards."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {"weights": self._shards, "optimizer": self._optimizer.state_dict()}
        torch.save(content, folder / self._shard_file)

    def load(self, folder: Path) -> None:
        """Raises InputError for a checkpoint of another number of ranks."""
        path = folder / self._shard_file
        if not path.exists():
            raise InputError(f"{folder} has no {path.name}: it was written by another number of GPUs, or by no FSDP1")
        content = torch.load(path, map_location="cpu", mmap=self.device.type != "cpu", weights_only=True)
        with torch.no_grad():
            for shard, kept in zip(self._shards, content["weights"], strict=True):
                shard.copy_(kept)
        with keeping_settings(self._optimizer):
            self._optimizer.load_state_dict(content["optimizer"])

    @property
    def _shard_file(self) -> str:
        return SHARD_FILE.format(rank=self.rank, num_ranks=self.num_ranks)

    def weights(self) -> dict[str, Tensor] | None:
        """Gathered unit by unit into the first rank's host memory; a weight that several modules share once."""
        config = FullStateDictConfig(offload_to_cpu=self.device.type != "cpu", rank0_only=True)
        with FullyShardedDataParallel.state_dict_type(self._module, StateDictType.FULL_STATE_DICT, config):
            whole = self._module.state_dict(prefix="")
        if self.rank != 0:
            return None
        found: dict[str, Tensor] = {}
        dtype = torch_dtype(self._recipe.trained_dtype)
        for name, first in self._first_name.items():
            weight = whole[f"model.{first}"]
            found[name] = found[first] if first in found else weight.to(dtype if weight.is_floating_point() else None)
        return found

    def _clipped_norm(self) -> float:
        root: Any = self._module
        return float(root.clip_grad_norm_(self._recipe.gradient_clipping))


def flat_sharded(module: LossModule, recipe: Recipe, device: torch.device) -> FullyShardedDataParallel:
    of_language = recipe.shard_units is ShardUnits.LANGUAGE_LAYERS
    layers = set(unit_layers(around_embedding(module.model) if of_language else module))

    def wraps(module: Any, recurse: bool, **_: Any) -> bool:
        return recurse or module in layers

    types = None
    if recipe.precision.is_mixed:
        dtype = torch_dtype(recipe.precision.dtype)
        types = MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)
    reshards = recipe.reshard_after_forward
    return FullyShardedDataParallel(
        module,
        sharding_strategy=ShardingStrategy.FULL_SHARD if reshards else ShardingStrategy.SHARD_GRAD_OP,
        cpu_offload=CPUOffload(offload_params=recipe.offload_params is not Offload.NONE),
        auto_wrap_policy=wraps,
        mixed_precision=types,
        backward_prefetch=PREFETCHES[recipe.flat_parameters],
        forward_prefetch=recipe.prefetches_forward,
        use_orig_params=recipe.uses_orig_params,
        device_id=device,
    )
