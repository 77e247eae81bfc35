"""A checkpoint whose experts are in MXFP4, or whose Linears are in FP8, is trained in 16 bits."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tiny_plans import tiny_plan
from transformers import AutoConfig, AutoModelForCausalLM

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, Method
from vlmplan_trainer.models.load import load_base, load_model

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}
TWO_ONES = 0x22
"""Two 4-bit numbers of a byte; the code 2 is 1.0 (OCP Microscaling Formats 1.0, E2M1)."""
SCALE_OF_FOUR = 127 + 2
"""E8M0: a power of two, above 127."""


@pytest.fixture
def folder(tmp_path):
    config = AutoConfig.for_model("gpt_oss", **SIZES)
    weights = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, width, out_width = weights.pop(name).shape
        blocks = (experts, out_width, width // 32)
        weights[f"{name}_blocks"] = torch.full((*blocks, 16), TWO_ONES, dtype=torch.uint8)
        weights[f"{name}_scales"] = torch.full(blocks, SCALE_OF_FOUR, dtype=torch.uint8)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "quantization_config": quantization}))
    return tmp_path


def test_experts_are_dequantised_while_loading(folder):
    plan = tiny_plan(folder, Recipe(method=Method.LORA, zero_stage=2, attention=AttentionImplementation.EAGER))
    assert plan.workload.model.is_mxfp4
    for model in (load_model(plan).model, load_base(plan)):
        experts = {name: one for name, one in model.named_parameters() if name.endswith(("gate_up_proj", "down_proj"))}
        assert [tuple(one.shape) for one in experts.values()] == [(3, 64, 2 * 32), (3, 32, 64)]
        assert all(one.dtype is torch.bfloat16 and bool((one == 4.0).all()) for one in experts.values())


def test_transformers_trains_nothing_that_it_leaves_packed():
    from transformers.quantizers.auto import AutoHfQuantizer
    from transformers.utils.quantization_config import Mxfp4Config

    assert not AutoHfQuantizer.from_config(Mxfp4Config()).is_trainable


BLOCK = 16


@pytest.fixture
def fp8_folder(tmp_path):
    sizes = {name: SIZES[name] for name in SIZES if "experts" not in name and name != "sliding_window"}
    config = AutoConfig.for_model("llama", **sizes)
    weights = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).state_dict()
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        rows, columns = weights[name].shape
        weights[name] = torch.full((rows, columns), 2.0).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = torch.full((rows // BLOCK, columns // BLOCK), 3.0)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    quantization = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps({**config.to_dict(), "quantization_config": quantization}))
    return tmp_path


def test_linears_in_fp8_are_dequantised_while_loading(fp8_folder):
    plan = tiny_plan(fp8_folder, Recipe(method=Method.LORA, zero_stage=2))
    assert plan.workload.model.is_fp8
    for model in (load_model(plan).model, load_base(plan)):
        linears = {name: one for name, one in model.named_parameters() if "_proj" in name and "lora" not in name}
        assert len(linears) == 7
        assert all(one.dtype is torch.bfloat16 and bool((one == 2.0 * 3.0).all()) for one in linears.values())
