"""MLPs on a tile of the tokens at a time: DeepSpeed's ``TiledMLP`` around the MLPs of a transformers model.

Every rank has to run as many tiles as the others, as each fetches weights under ZeRO-3. So their number is that of the
plan's length, whatever the length of a micro batch. ``torch.chunk`` gives fewer tiles than it is asked for where there
are few tokens, of which DeepSpeed 0.19.8 would never reach the last, so that gradients would be lost: such samples are
padded to whole tiles, and what the padding makes is cut off.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from vlmplan.errors import InputError
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Part, is_gated_mlp, num_tiles
from vlmplan_trainer.models.parts import Parts


def tile_mlps(model: nn.Module, recipe: Recipe, seq_len: int) -> None:
    """Run the MLPs of the language model of ``model`` tile by tile, where the recipe says so and samples of ``seq_len``
    tokens have more than one tile. Raises InputError if there is no such MLP."""
    if not recipe.tiled_mlp:
        return
    found = list(gated_mlps(model, Parts(model)))
    if not found:
        raise InputError(f"{type(model).__name__} has no MLP that can be tiled; give --no-tiled-mlp")
    num_tokens = -(-seq_len // recipe.sequence_parallel) * (recipe.micro_batch if recipe.batching.is_flat else 1)
    for mlp in found:
        width = _width(mlp)
        if (count := num_tiles(num_tokens, width)) > 1:
            mlp.forward = _tiled(mlp, count)


def gated_mlps(model: nn.Module, parts: Parts) -> Iterator[nn.Module]:
    """The dense MLPs of the language model's layers."""
    for name, module in model.named_modules():
        names = dict(module.named_children())
        if name.rpartition(".")[2] == "mlp" and parts[name] is Part.LANGUAGE and is_gated_mlp(names):
            yield module


def _width(mlp: Any) -> int:
    return (mlp.gate_proj if hasattr(mlp, "gate_proj") else mlp.gate_up_proj).in_features


def _tiled(mlp: nn.Module, count: int) -> Any:
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP

    plain = type(mlp).forward
    weights: list[nn.Parameter] = []

    def forward(x: Tensor) -> Tensor:
        if not weights:  # adapters are there by now
            weights.extend(weight for weight in mlp.parameters() if weight.requires_grad)
        num_tokens = x.shape[-2]
        padded = _whole_tiles(x, count)
        if weights and torch.is_grad_enabled() and not padded.requires_grad:
            padded = _leaf(padded)
        return TiledMLP.apply(plain, mlp, padded, count, weights)[..., :num_tokens, :]

    return forward


def _whole_tiles(x: Tensor, count: int) -> Tensor:
    """``x`` (samples, tokens, width), with zeros behind each sample where it would be cut into fewer than ``count``."""
    num_tokens = x.shape[-2]
    size = math.ceil(num_tokens / count)
    if math.ceil(num_tokens / size) == count:
        return x
    return nn.functional.pad(x, (0, 0, 0, count * size - num_tokens))


def _leaf(x: Tensor) -> Tensor:
    """``x`` that needs a gradient, as the weights of an MLP would have none otherwise; it is thrown away."""
    leaf = x.detach().requires_grad_()
    leaf.register_post_accumulate_grad_hook(_forget)
    return leaf


def _forget(leaf: Tensor) -> None:
    leaf.grad = None
