"""Recipes of torchtune are not read: what is said in their place is a command that plans the same."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from vlmplan.cli.check import check
from vlmplan.cli.estimate import estimate
from vlmplan.other_trainers.torchtune import problem_of_torchtune

MODELS = "torchtune.models."
LORA = {"lora_attn_modules": ["q_proj", "v_proj", "output_proj"], "apply_lora_to_mlp": True, "lora_rank": 8}
TARGETS = "--lora-targets q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
COMMANDS: dict[str, tuple[dict[str, Any], str]] = {
    "llama3_1.llama3_1_8b": ({}, "--model llama-3.1-8b --method full"),
    "llama3_1.lora_llama3_1_8b": (LORA, f"--model llama-3.1-8b --method lora --lora-rank 8 {TARGETS}"),
    "llama3.lora_llama3_8b": (
        LORA | {"quantize_base": True, "use_dora": True},
        f"--model llama-3-8b --method qlora --lora-rank 8 {TARGETS} --use-dora",
    ),
    "qwen2_5.qlora_qwen2_5_0_5b": (LORA, f"--model qwen2.5-0.5b --method qlora --lora-rank 8 {TARGETS}"),
    "qwen2.qwen2_7b": ({}, "--model qwen2-7b --method full"),
    "qwen3.lora_qwen3_8b_base": (
        {"lora_rank": 4, "lora_alpha": 8},
        "--model qwen3-8b-base --method lora --lora-rank 4 --lora-alpha 8",
    ),
    "phi4.phi4_14b": ({}, "--model phi-4 --method full"),
    "phi3.lora_phi3_mini": (LORA, "--method lora --lora-rank 8 --lora-targets qkv_proj,o_proj,gate_up_proj,down_proj"),
    "llama3_2_vision.llama3_2_vision_11b": ({}, "--model llama-3.2-11b-vision --method full"),
    "gemma2.gemma2_2b": ({}, "--model gemma-2-2b --method full"),
}


def recipe(builder: str, keys: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": {"_component_": f"{MODELS}{builder}", **keys}, "optimizer": {}, "checkpointer": {}, **more}


@pytest.mark.parametrize("builder", COMMANDS)
def test_a_recipe_is_answered_with_a_command_that_estimates(builder: str):
    keys, words = COMMANDS[builder]
    said = problem_of_torchtune(recipe(builder, keys))
    assert words in said
    command = said.partition("vlmplan recommend ")[2].partition(" plans the same for TRL")[0]
    found = CliRunner().invoke(estimate, [*shlex.split(command), "--gpu", "h200-sxm:8"])
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}}, "--for trl --task dpo --model llama-3.1-8b"),
        ({"tokenizer": {"max_seq_len": 1024}}, "--method full --seq-len 1024 plans"),
        ({"loss": {"_component_": "torchtune.dev.grpo.loss.GRPOSimpleLoss"}}, "it trains by GRPO, which is not"),
        ({"teacher_model": {}}, "it trains by distillation, which is not planned"),
        ({"quantizer": {"_component_": "torchtune.training.quantization.Int8"}}, "quantised (QAT), which is not"),
        ({"optimizer": None, "quantizer": None}, "without optimizer it trains nothing"),
        ({"model": None}, "say what it trains with the options of vlmplan recommend"),
        ({"model": {"_component_": "mine.my_model"}}, "--model NAME --method full"),
    ],
)
def test_what_a_recipe_trains_decides_what_is_said(more: dict[str, Any], words: str):
    values = {**recipe("llama3_1.llama3_1_8b", {}), **more}
    said = problem_of_torchtune({key: value for key, value in values.items() if value is not None or key == "model"})
    assert said.startswith("torchtune, whose development ended in 2025")
    assert words in said


def test_a_script_that_starts_one_asks_for_its_file(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\ntune run --nproc_per_node 2 lora_finetune_distributed --config llama3_1/8B_lora\n")
    found = CliRunner().invoke(check, [str(script), "--gpu", "a100-sxm4-80gb:1"])
    assert "starts tune run of torchtune" in str(found.exception)
    assert "give the YAML file of its --config" in str(found.exception)


def test_a_file_is_told_by_its_keys(tmp_path: Path):
    file = tmp_path / "lora.yaml"
    file.write_text(
        yaml.safe_dump(recipe("llama3_1.lora_llama3_1_8b", LORA, tokenizer={}, metric_logger={}, batch_size=2))
    )
    found = CliRunner().invoke(check, [str(file), "--gpu", "a100-sxm4-80gb:1"])
    assert f"{file} looks like a configuration of torchtune" in str(found.exception)
    assert f"--lora-rank 8 {TARGETS} plans the same for TRL" in str(found.exception)
