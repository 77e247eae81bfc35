"""LoRA on models without a family whose experts lie in one parameter: which weights are trained, as peft has it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

import peft
import torch
from transformers import conversion_mapping

from hub_server import isolated_cache
from model_types import stored_rows
from vlmplan.architecture.generic.model import OLD_EXPERTS
from vlmplan.architecture.prepare import prepared_model
from vlmplan.models import find_model
from vlmplan.models import probe as model_probe
from vlmplan.models.tree import model_tree
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.rehearsal.prefixes import shortened
from vlmplan_trainer.probe import configuration, layout, model_class

TRIED_FIRST = ("beam",)
RECIPE = Recipe(method=Method.LORA, zero_stage=None, micro_batch=1, activation_checkpointing=False)


def config_of(model_type: str) -> dict[str, Any]:
    """The default configuration with three layers."""
    values = configuration({"model_type": model_type}).to_dict()
    return shortened(json.loads(json.dumps(values, default=str)), 3)


def real_sizes(config: dict[str, Any]) -> Counter[tuple[str, int]]:
    """Names and numbers of elements of the weights that peft trains, each projection of the adapters by itself."""
    values = configuration(config)
    with torch.device("meta"):
        model = model_class(values)._from_config(values, dtype=torch.bfloat16)
        model = peft.get_peft_model(model, peft.LoraConfig(r=RECIPE.lora_rank, target_modules="all-linear"))
    named = ((name, weight.numel()) for name, weight in model.named_parameters() if weight.requires_grad)
    return Counter((name.removeprefix("base_model.model.").replace(".default.", "."), size) for name, size in named)


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=() if name in TRIED_FIRST else (pytest.mark.sweep, pytest.mark.long))
        for name in OLD_EXPERTS
    ],
)
def test_names_that_experts_had_mean_parameters(model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    isolated_cache(monkeypatch, tmp_path)
    monkeypatch.setattr(model_probe, "_answer", lambda config: {"layout": json.loads(json.dumps(layout(config)))})
    config = config_of(model_type)
    (tmp_path / "config.json").write_text(json.dumps(config))
    planned = prepared_model(model_tree(find_model(str(tmp_path))), RECIPE)
    trained = (entry for entry in planned.parameters() if entry.parameter.requires_grad)
    sizes = Counter((entry.name, entry.parameter.numel) for entry in trained)
    real = real_sizes(config)
    numbers = [sum(size * count for (_, size), count in one.items()) for one in (sizes, real)]
    assert numbers[0] == numbers[1]
    assert {name for name, _ in sizes} == {name for name, _ in real}


def test_all_types_are_known_of_which_peft_does_so():
    patterns = conversion_mapping._MODEL_TO_CONVERSION_PATTERN
    traced = {row.model_type for row in stored_rows() if row.how == "traced"}
    assert {name for name in traced if patterns.get(name) in ("mixtral", "qwen2_moe")} == OLD_EXPERTS.keys()
