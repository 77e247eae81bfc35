"""FSDP2's groups are the layers that transformers can run again: those that the trainer shards one by one."""

import pytest

pytest.importorskip("transformers")

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from planned import of_few_layers, workload
from vlmplan.engines.layer_groups import layer_groups
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan_trainer.models.load import configuration, model_class

FSDP = Recipe(fsdp=True)
NUM_LAYERS = 2
sweep = pytest.mark.sweep
MODELS = [
    "qwen2.5-vl-3b",
    *(pytest.param(name, marks=sweep) for name in ("tinyllama-1.1b", "mixtral-8x7b", "gemma-3-4b", "internvl3-1b")),
]


@pytest.mark.parametrize("alias", MODELS)
def test_each_layer_that_can_run_again_is_a_group(alias: str):
    files = of_few_layers(alias, NUM_LAYERS)
    groups = layer_groups(Estimator(workload(files), FSDP).table, FSDP, 2)
    with torch.device("meta"):
        config = configuration(dict(files.config))
        model = model_class(config)._from_config(config)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, GradientCheckpointingLayer)}
    assert layers
    found = [{entry.name for entry in group.weights} for group in groups.layers]
    theirs = [{f"{name}.{own}" for own, _ in layer.named_parameters()} for name, layer in layers.items()]
    assert sorted(map(sorted, found)) == sorted(map(sorted, theirs))
