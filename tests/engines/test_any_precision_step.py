"""What EasyR1's AnyPrecisionAdamW makes in a step, beside the same operations of torch."""

import torch

from storages import Live
from vlmplan.engines.optimizer_states import state_bytes, update_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind
from vlmplan.units import DType

SHAPES = ((300, 1000), (70, 500), (900, 1000), (10,))
KIND = Recipe(optimizer=OptimizerKind.ANY_PRECISION_ADAMW)
SCALARS = 64
"""Bytes of numbers on the CPU that the step counts with."""


def stepped(weights: list[torch.Tensor], states: list[tuple[torch.Tensor, ...]], step: torch.Tensor) -> None:
    """The second step and later ones, in the order and under the names of ``verl/utils/torch_functional.py``
    (EasyR1@b44b311b)."""
    for weight, (first, second, compensation) in zip(weights, states, strict=True):
        weight.data.mul_(1 - 1e-5)
        first.mul_(0.9).add_(weight, alpha=0.1)  # a gradient is as large
        second.mul_(0.999).addcmul_(weight, weight, value=0.001)
        centered_variance = (second.sqrt() / (1 - 0.999**step) ** 0.5).add_(1e-8, alpha=1)
        compensation.addcdiv_(first, centered_variance, value=-1e-3)
        temp_buffer = weight.detach().clone()
        weight.data.add_(compensation)
        compensation.add_(temp_buffer.sub_(weight.data))


def test_a_step_makes_a_root_and_a_copy_of_each_weight_beside_those_of_the_one_before():
    weights = [torch.ones(shape, dtype=torch.bfloat16) for shape in SHAPES]
    states = [tuple(torch.zeros_like(weight) for _ in range(3)) for weight in weights]
    assert state_bytes(KIND, SHAPES, DType.BFLOAT16) == sum(one.nbytes for kept in states for one in kept)
    step = torch.tensor(2.0)
    with Live([*weights, *(one for kept in states for one in kept), step]) as live:
        stepped(weights, states, step)
    planned = update_bytes(KIND, SHAPES, DType.BFLOAT16)
    assert planned <= live.most <= planned + SCALARS
