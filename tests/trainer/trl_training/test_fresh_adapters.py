"""Adapters that TRL's trainers find in a model that they are given, before they are trained."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("peft")

from peft import LoraConfig, get_peft_model

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan_trainer.trl_training.planned import planned_trainer


class Copying:
    """What the constructors of ``dpo_trainer.py``, ``kto_trainer.py`` and ``grpo_trainer.py`` of TRL 1.16 do."""

    def __init__(self, *, model: Any) -> None:
        self.accelerator = SimpleNamespace()
        model.add_adapter("ref", model.peft_config["default"])
        for name, param in model.named_parameters():
            if ".default." in name:
                model.get_parameter(name.replace(".default.", ".ref.")).data.copy_(param.data)


def adapted() -> Any:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7))
    return get_peft_model(model, LoraConfig(r=2, target_modules=["0"], modules_to_save=["1"]))  # type: ignore[arg-type]


def made(model: Any, recipe: Recipe) -> None:
    planned_trainer(Copying)(model=model, planned=SimpleNamespace(plan=SimpleNamespace(recipe=recipe)))


def test_fresh_adapters_and_what_is_trained_with_them_have_no_copy_for_the_reference():
    model = adapted()
    before = {name: param.clone() for name, param in model.named_parameters()}
    made(model, Recipe(method=Method.LORA))
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert list(model.peft_config) == ["default"]
    assert all(torch.equal(after[name], value) for name, value in before.items())
    model.add_adapter("another", model.peft_config["default"])
    assert model.get_parameter("base_model.model.0.lora_A.another.weight").shape == (2, 3)


def test_adapters_that_begin_as_parts_of_the_weights_have_one():
    model = adapted()
    made(model, Recipe(method=Method.LORA, lora_init="pissa"))
    assert list(model.peft_config) == ["default", "ref"]
