"""DeepSpeed's Muon as the trainer makes it: who updates what, and at which learning rate."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import pytest
import torch

pytest.importorskip("deepspeed")

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind
from vlmplan.recipe.muon import LR_RATIO
from vlmplan_trainer.engines.optimizers import make_optimizer, set_learning_rate

NAMES = {"model.layers.0.weight": (6, 4), "model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,)}


@pytest.fixture
def stance():
    yield
    torch.compiler.set_stance("default")


def test_hidden_matrices_are_muons_at_fifty_times_the_rate(stance):
    trained = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in NAMES.items()}
    optimizer = make_optimizer(trained, Recipe(optimizer=OptimizerKind.MUON, zero_stage=2), weight_decay=0.0)
    set_learning_rate(optimizer, 1e-4)
    rates = {id(one): group["lr"] for group in optimizer.param_groups for one in group["params"]}
    tags = {name: one.use_muon for name, one in trained.items()}
    assert tags == {"model.layers.0.weight": True, "model.embed_tokens.weight": False, "model.norm.weight": False}
    assert {name: rates[id(one)] for name, one in trained.items()} == {
        name: pytest.approx(1e-4 * (LR_RATIO if uses_muon else 1)) for name, uses_muon in tags.items()
    }
