"""torchao's AdamW as the trainer makes it, where the package is installed."""

import pytest
import torch

pytest.importorskip("torchao")

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind, Precision
from vlmplan_trainer.engines.optimizers import make_optimizer, set_learning_rate

KINDS = [kind for kind in OptimizerKind if kind.is_torchao]


def made(kind: OptimizerKind, precision: Precision = Precision.BF16, dtype: torch.dtype = torch.float32):
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 64 * 64, dtype=dtype).view(64, 64))
    return weight, make_optimizer({"weight": weight}, Recipe(optimizer=kind, precision=precision), weight_decay=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_goes_against_the_gradient_at_the_learning_rate(kind):
    weight, optimizer = made(kind)
    before, weight.grad = weight.detach().clone(), torch.full_like(weight, 0.5)
    set_learning_rate(optimizer, 0.125)
    optimizer.step()
    assert torch.allclose(before - weight, torch.tensor(0.125), atol=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_small_updates_of_16_bit_weights_are_not_lost(kind):
    weight, optimizer = made(kind, Precision.BF16_PURE, torch.bfloat16)
    weight.data.fill_(1.0)
    weight.grad = torch.full_like(weight, 0.5)
    set_learning_rate(optimizer, 2.0**-12)  # a 32nd of the last bit of 1.0
    torch.manual_seed(0)
    optimizer.step()
    moved = 1.0 - weight.float().mean().item()
    assert moved == pytest.approx(2.0**-12, rel=0.25)
