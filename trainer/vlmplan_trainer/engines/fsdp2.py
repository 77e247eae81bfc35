"""FSDP2 (``torch.distributed.fsdp.fully_shard``): PyTorch's own sharding of weights, gradients and states.

Weights are grouped as accelerate groups them (1.15 ``utils/fsdp_utils.py``, ``fsdp2_prepare_model``), so that a plan
for Hugging Face's Trainer is the same: every layer that can be run again in backward (transformers'
``GradientCheckpointingLayer``), the input embedding, the final norm with the head, and the root, the model with its
loss, with what is left; or layers and the root alone, as accelerate up to 1.13 has them. Weights are sharded in the
type that the optimizer updates, and gathered in that of the computation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload, ShardUnits
from vlmplan_trainer.engines.base import LossModule
from vlmplan_trainer.engines.optimizers import keeping_settings
from vlmplan_trainer.engines.sharded import ShardedEngine, device_mesh, last_of_lists, units_of
from vlmplan_trainer.models.base_model import base_model
from vlmplan_trainer.models.weight_types import torch_dtype

PACKED = "Params4bit"
"""bitsandbytes' class of 4-bit weights."""


class FsdpEngine(ShardedEngine):
    """The root stays whole from its forward to the end of backward, as torch has it, unless it has the ends: backward
    begins with it. So does the head, whose forward ends where its backward begins."""

    kind = "FSDP2"

    def _sharded(self, module: LossModule, recipe: Recipe, device: torch.device) -> LossModule:
        shard(module, recipe, device_mesh(device.type, recipe, self.num_ranks))
        return module

    def forward(self, batch: Mapping[str, Tensor], num_items: int) -> Tensor:
        is_counted = self._num_micro_batches + torch.is_grad_enabled()
        if not self._recipe.sync_each_batch:
            self._root.set_requires_gradient_sync(is_counted % self._recipe.grad_accum == 0)
        return super().forward(batch, num_items)

    def _clipped_norm(self) -> float:
        norm = nn.utils.clip_grad_norm_(self._trained, self._recipe.gradient_clipping)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """The ranks of one copy of the model write their shards."""
        content = {
            "weights": {name: _local(weight.detach()) for name, weight in self._trained_by_name()},
            "optimizer": tree_map(_local, self._optimizer.state_dict()),
        }
        self._write_shard(folder, content)

    def load(self, folder: Path) -> None:
        """Raises InputError for a checkpoint of another number of ranks."""
        content = self._read_shard(folder)
        with torch.no_grad():
            for name, weight in self._trained_by_name():
                _local(weight).copy_(content["weights"][name])
        with keeping_settings(self._optimizer):
            self._optimizer.load_state_dict(_with_shards(content["optimizer"], self._optimizer))

    def _trained_by_name(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad)

    def weights(self) -> dict[str, Tensor] | None:
        """Gathered one by one, in the type of the computation, into the first rank's host memory: a weight that several
        modules share once, so that it is written once."""
        trained = {name for name, _ in self._trained_by_name()}
        dtype = torch_dtype(self._recipe.trained_dtype)
        found: dict[str, Tensor] = {}
        first: dict[int, str] = {}
        for name, weight in self.model.state_dict(keep_vars=True).items():
            same = first.setdefault(id(weight), name)
            if same != name:
                found |= {name: found[same]} if self.rank == 0 else {}
                continue
            whole = weight.detach()
            if isinstance(whole, DTensor):
                whole = whole.full_tensor()
            if self.rank == 0:
                found[name] = whole.to("cpu", dtype if name in trained else whole.dtype)
        return found if self.rank == 0 else None


def shard(module: LossModule, recipe: Recipe, mesh: DeviceMesh) -> None:
    """Group by group, so that a GPU has no more than one whole group at a time."""
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    if recipe.precision.is_mixed or recipe.reduces_in_float32:
        dtype = torch_dtype(recipe.precision.dtype)
        reduced = torch_dtype(recipe.reduce_dtype)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced, cast_forward_inputs=False)
    has_gpu = mesh.device_type != "cpu"  # memory is pinned for a GPU alone
    offload = OffloadPolicy() if recipe.offload_params is Offload.NONE else CPUOffloadPolicy(pin_memory=has_gpu)
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload}
    if recipe.leaves_out_packed:
        settings["ignored_params"] = {one for one in module.parameters() if type(one).__name__ == PACKED}
    reshards = recipe.reshard_after_forward
    for matrix in adapters_matrices(module) if recipe.shard_units is ShardUnits.ADAPTERS_TOO else ():
        casting = {**settings, "mp_policy": replace(policy, cast_forward_inputs=True)}  # peft has cast what it gets
        fully_shard(matrix, reshard_after_forward=reshards, **casting)
    kept = last_of_lists(module) if recipe.keeps_last_layers else set[nn.Module]()
    for layer in units_of(module, recipe):
        fully_shard(layer, reshard_after_forward=reshards and layer not in kept, **settings)
    if recipe.shard_units is ShardUnits.EMBEDDING_TOO:
        whole: Any = module.model
        table, head = whole.get_input_embeddings(), whole.get_output_embeddings()
        if head.weight is not table.weight:
            fully_shard(table, reshard_after_forward=reshards, **settings)
    if recipe.has_ends_in_root:
        fully_shard(module, reshard_after_forward=reshards and not recipe.shard_units.keeps_last, **settings)
        return
    _join_tables(module.model)
    embedding, tail = _ends(module.model)
    if embedding is not None:
        fully_shard(embedding, reshard_after_forward=reshards, **settings)
    fully_shard(tail, reshard_after_forward=False, **settings)
    fully_shard(module, reshard_after_forward=None if reshards else False, **settings)  # None: the root stays whole


def _join_tables(model: nn.Module) -> None:
    """Let a model whose encoder and decoder have a module each for one token table, beside the one that it names its
    input embedding and never calls, have that one in their place, by its class's own means: a weight is of one
    group."""
    owner = base_model(model)
    table = owner.get_input_embeddings()
    others = [one for one in owner.modules() if one is not table and type(one) is type(table)]
    if any(other.weight is table.weight for other in others):
        owner.set_input_embeddings(table)


def adapters_matrices(module: nn.Module) -> Iterator[nn.Module]:
    """LoRA's on linear layers, as axolotl has them (0.18 ``monkeypatch/accelerate/fsdp2.py``)."""
    from peft.tuners.lora import LoraLayer

    for layer in module.modules():
        if isinstance(layer, LoraLayer):
            yield from (*layer.lora_A.values(), *layer.lora_B.values())


def _ends(model: Any) -> tuple[nn.Module | None, list[nn.Module]]:
    """The input embedding, and what is a group with the head: the final norm where there is one, and the embedding
    whose weight the head shares."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = {id(one) for one in head.parameters()}
    tables = [one for one in model.modules() if isinstance(one, nn.Embedding) and id(one.weight) in weights]
    if any(one in tables for one in embedding.modules()):  # peft's wrapper holds an original and its trained copy
        tables = [embedding, *(one for one in tables if one not in set(embedding.modules()))]
    norm = _final_norm(model)
    tail = [*([] if norm is None else [norm]), *tables, head]
    return None if embedding in tables else embedding, tail


def _final_norm(model: nn.Module) -> nn.Module | None:
    """accelerate's ``_find_final_norm``: the last norm among the children of the model's base. Behind peft's wrapper,
    and in models that see, that is a model without any."""
    base = getattr(model, getattr(model, "base_model_prefix", ""), None)
    children = base.children() if isinstance(base, nn.Module) else ()
    norms = [child for child in children if "Norm" in type(child).__name__]
    return norms[-1] if norms else None


def _local(item: Any) -> Any:
    """This rank's part of a sharded tensor; anything else as it is."""
    return item.to_local() if isinstance(item, DTensor) else item


def _with_shards(state_dict: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """States of ``optimizer`` with shards in place of this rank's parts of them. It numbers its weights through its
    groups, which LoRA+ has several of."""
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]

    def sharded(part: Any, weight: Any) -> Any:
        if not isinstance(part, Tensor) or part.shape != weight.to_local().shape:
            return part
        where = {"shape": weight.shape, "stride": weight.stride(), "run_check": False}
        local = part.to(weight.to_local().device)
        return DTensor.from_local(local, weight.device_mesh, weight.placements, **where)

    states = {
        place: {name: sharded(part, trained[place]) for name, part in state.items()}
        for place, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}
