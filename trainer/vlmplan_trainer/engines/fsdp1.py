"""FSDP1 (``FullyShardedDataParallel``): one flat parameter of the weights of each layer, and of all others in the root.

As accelerate wraps a model (1.15 ``accelerator.py``, ``prepare_model``): by the classes of its layers, under autocast
in mixed precision. Weights are sharded in the type that the optimizer updates, and gathered in that of the computation.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import get_world_size
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
)

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, Offload
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.engines.optimizers import keeping_settings
from vlmplan_trainer.engines.sharded import ShardedEngine, device_mesh, units_of
from vlmplan_trainer.models.load import torch_dtype

PREFETCHES: Mapping[FlatParameters, BackwardPrefetch | None] = {
    FlatParameters.ON_DEMAND: None,
    FlatParameters.BACKWARD_PRE: BackwardPrefetch.BACKWARD_PRE,
    FlatParameters.BACKWARD_POST: BackwardPrefetch.BACKWARD_POST,
}

STRATEGIES: Mapping[tuple[bool, bool], ShardingStrategy] = {
    (False, True): ShardingStrategy.FULL_SHARD,
    (False, False): ShardingStrategy.SHARD_GRAD_OP,
    (True, True): ShardingStrategy.HYBRID_SHARD,
    (True, False): ShardingStrategy._HYBRID_SHARD_ZERO2,
}
"""By whether there are copies of the model, and whether weights are sharded again after forward."""


class FlatEngine(ShardedEngine):
    """A rank's shards of flat parameters, which a checkpoint keeps as they are."""

    kind = "FSDP1"

    def _sharded(self, module: LossModule, recipe: Recipe, device: torch.device) -> FullyShardedDataParallel:
        first: dict[int, str] = {}
        weights = module.model.state_dict(keep_vars=True)
        for name in weights.keys() - _names(module.model):  # scales of 4-bit weights, which FSDP's dictionary lacks
            del weights[name]
        self._first_name = {name: first.setdefault(id(weight), name) for name, weight in weights.items()}
        trained = torch_dtype(recipe.trained_dtype)
        self._types = {name: trained if weight.requires_grad else weight.dtype for name, weight in weights.items()}
        weights.clear()  # which would hold all of them whole while they are sharded one by one
        return flat_sharded(module, recipe, device)

    def backward(self, loss: Tensor) -> None:
        with nullcontext() if self._reduces else self._root.no_sync():
            super().backward(loss)

    @property
    def _shards(self) -> list[Tensor]:
        units = FullyShardedDataParallel.fsdp_modules(self._module)
        flat = [unit._handle.flat_param for unit in units if unit._handle is not None]
        return [one.data for one in flat if one.requires_grad]

    def save(self, folder: Path) -> None:
        """Every rank writes its shards."""
        content = {"weights": self._shards, "optimizer": self._optimizer.state_dict()}
        self._write_shard(folder, content)

    def load(self, folder: Path) -> None:
        """Raises InputError for a checkpoint of another number of ranks."""
        content = self._read_shard(folder)
        with torch.no_grad():
            for shard, kept in zip(self._shards, content["weights"], strict=True):
                shard.copy_(kept)
        with keeping_settings(self._optimizer):
            self._optimizer.load_state_dict(content["optimizer"])

    def weights(self) -> dict[str, Tensor] | None:
        """Gathered unit by unit into the first rank's host memory; a weight that several modules share once. Other
        copies of the model would each fill the memory of their own first rank's."""
        if self.rank >= self._num_sharing:
            return None
        config = FullStateDictConfig(offload_to_cpu=self.device.type != "cpu", rank0_only=True)
        with FullyShardedDataParallel.state_dict_type(self._module, StateDictType.FULL_STATE_DICT, config):
            whole = self._module.state_dict(prefix="")
        if self.rank != 0:
            return None
        found: dict[str, Tensor] = {}
        for name, first in self._first_name.items():
            found[name] = found[first] if first in found else whole[f"model.{first}"].to(self._types[name])
        return found

    def _clipped_norm(self) -> float:
        return float(self._root.clip_grad_norm_(self._recipe.gradient_clipping))


def _names(model: nn.Module) -> set[str]:
    """Names of parameters and buffers, those of shared ones too."""
    weights, buffers = (named(remove_duplicate=False) for named in (model.named_parameters, model.named_buffers))
    return {name for name, _ in (*weights, *buffers)}


def is_trained_leaf(module: nn.Module) -> bool:
    """Whether peft's policy makes a unit of it (0.21 ``fsdp_auto_wrap_policy``): one factor of an adapter."""
    weight: Any = getattr(module, "weight", None)
    return not any(True for _ in module.children()) and weight is not None and weight.requires_grad


def _give_one_type(unit: nn.Module, others: set[nn.Module]) -> None:
    """Frozen weights that are flattened with trained ones have their type (accelerate 1.15 ``prepare_model`` makes a
    whole flat parameter float32). ``others``: units inside, whose weights are theirs."""
    apart = {id(weight) for other in others for weight in other.parameters()}
    own = [weight for weight in unit.parameters() if id(weight) not in apart]
    dtype = next((weight.dtype for weight in own if weight.requires_grad), None)
    for weight in own if dtype is not None else ():
        weight.data = weight.data.to(dtype)


def flat_sharded(module: LossModule, recipe: Recipe, device: torch.device) -> FullyShardedDataParallel:
    layers = set(units_of(module, recipe))
    if not recipe.trains_adapters:
        for unit in (*layers, module):
            _give_one_type(unit, layers - {unit})

    def wraps(module: Any, recurse: bool, **_: Any) -> bool:
        return recurse or module in layers or (recipe.trains_adapters and is_trained_leaf(module))

    types = None
    if recipe.precision.is_mixed:
        dtype = torch_dtype(recipe.precision.dtype)
        types = MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=dtype)
    num_ranks = get_world_size()
    has_copies = recipe.sharing_ranks(num_ranks) < num_ranks
    return FullyShardedDataParallel(
        module,
        sharding_strategy=STRATEGIES[has_copies, recipe.reshard_after_forward],
        cpu_offload=CPUOffload(offload_params=recipe.offload_params is not Offload.NONE),
        auto_wrap_policy=wraps,
        mixed_precision=types,
        backward_prefetch=PREFETCHES[recipe.flat_parameters],
        forward_prefetch=recipe.prefetches_forward,
        use_orig_params=recipe.uses_orig_params,
        device_id=device,
        device_mesh=device_mesh(device.type, recipe, num_ranks) if has_copies else None,
    )
