"""bitsandbytes' optimizers as the trainer makes them: what they keep is planned; a CPU pages nothing."""

import pytest
import torch

pytest.importorskip("bitsandbytes")

from vlmplan.engines.optimizer_states import paged_bytes, state_bytes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind
from vlmplan.units import DType
from vlmplan_trainer.engines.optimizers import make_optimizer, set_learning_rate

SHAPES = [(400, 300), (64, 65), (65,)]


@pytest.mark.parametrize("kind", [kind for kind in OptimizerKind if kind.is_bitsandbytes])
def test_states_take_what_is_planned_on_gpu_and_host_together(kind: OptimizerKind):
    recipe = Recipe(optimizer=kind)
    weights = {str(shape): torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES}
    optimizer = make_optimizer(weights, recipe, weight_decay=0.0)
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    set_learning_rate(optimizer, 0.125)
    optimizer.step()
    kept = [
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and not name.startswith("qmap")  # one table for all weights
    ]
    assert sum(kept) == state_bytes(recipe, SHAPES, DType.FLOAT32) + paged_bytes(recipe, SHAPES)
    assert all(torch.all(weight < 1) for weight in weights.values())
