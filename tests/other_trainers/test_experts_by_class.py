"""What all Linears are to trainers that look for modules of that class: of stacked experts none is one."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing import Tool, behaviour, objection
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import ALL_LINEAR, Method
from vlmplan.recipe.lora_targets import LINEARS_BESIDE_EXPERTS, linears_by_class

MODELS = ("qwen3-30b-a3b", "mixtral-8x7b")
DATA = {"datasets": [{"path": "d", "type": "alpaca"}], "micro_batch_size": 1, "gradient_accumulation_steps": 1}
FILES = {
    "llamafactory": {"stage": "sft", "finetuning_type": "lora", "lora_target": "all", "bf16": True},
    "ms-swift": {"tuner_type": "lora", "target_modules": ALL_LINEAR, "torch_dtype": "bfloat16"},
    "axolotl": {"adapter": "lora", "lora_r": 8, "lora_alpha": 16, "lora_target_linear": True, "bf16": True, **DATA}
    | {"num_epochs": 1, "attn_implementation": "flash_attention_2"},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_linears_of_a_model_of_experts_are_attentions(name):
    """As all three find them: by the last parts of the names of modules whose class is called Linear."""
    config = AutoConfig.for_model(**{**find_model(name).config, "num_hidden_layers": 1})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    names = {name.rpartition(".")[2] for name, one in model.named_modules() if "Linear" in type(one).__name__}
    assert names - {"lm_head"} == set(LINEARS_BESIDE_EXPERTS.split(","))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("trainer", FILES)
def test_trainers_that_look_for_linears_adapt_no_experts(tmp_path, trainer, name):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(FILES[trainer]), encoding="utf-8")
    config = read_trainer_config(path, Asked(model=name, find_model=find_model, num_gpus=1))
    assert config.options["lora_targets"] == LINEARS_BESIDE_EXPERTS


def test_a_layer_with_an_mlp_has_linears_by_the_names_of_experts():
    config = find_model("qwen3-30b-a3b").config
    assert linears_by_class(config) == LINEARS_BESIDE_EXPERTS
    assert linears_by_class({**config, "mlp_only_layers": [0]}) == ALL_LINEAR
    assert linears_by_class({**config, "decoder_sparse_step": 2}) == ALL_LINEAR
    assert linears_by_class(find_model("qwen3-8b").config) == ALL_LINEAR


@pytest.mark.parametrize("tool", [Tool.LLAMA_FACTORY, Tool.MS_SWIFT])
def test_a_plan_for_them_adapts_attention_unless_it_asks_for_what_they_cannot(tool):
    model, recipe = find_model("qwen3-30b-a3b"), Recipe(method=Method.LORA)
    assert behaviour(tool, recipe, model).lora_targets == LINEARS_BESIDE_EXPERTS
    said = objection(tool, recipe.with_changes(lora_targets=ALL_LINEAR), model)
    assert said is not None
    assert "experts are parameters" in said
    assert behaviour(Tool.TRL, recipe, model).lora_targets is None
