"""Reentrant checkpoints under ZeRO-3 keep frozen weights whole, which is told of a file and not planned."""

import json
from pathlib import Path

import pytest

from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.assembled import STAY_WHOLE
from vlmplan.other_trainers.read import read_trainer_config

LLAMA_FACTORY = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "stage": "sft", "do_train": True, "bf16": True}
AXOLOTL = {"base_model": "Qwen/Qwen2.5-0.5B", "bf16": True, "gradient_checkpointing": True, "datasets": []}
LORA = {"lora_target": "all", "finetuning_type": "lora"}
OF_AXOLOTL = {"adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True}


@pytest.mark.parametrize(
    ("keys", "stage", "is_told"),
    [
        (LLAMA_FACTORY | LORA, 3, True),
        (LLAMA_FACTORY | LORA | {"use_reentrant_gc": False}, 3, False),
        (LLAMA_FACTORY | LORA | {"disable_gradient_checkpointing": True}, 3, False),
        (LLAMA_FACTORY | LORA, 2, False),
        (LLAMA_FACTORY | {"finetuning_type": "full"}, 3, False),
        (AXOLOTL | OF_AXOLOTL, 3, True),
        (AXOLOTL | OF_AXOLOTL | {"gradient_checkpointing_kwargs": {"use_reentrant": False}}, 3, False),
    ],
)
def test_it_is_told_of_adapters_under_zero_3_alone(keys, stage: int, is_told: bool, tmp_path: Path):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}))
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps({**keys, "deepspeed": str(tmp_path / "ds.json")}))
    read = read_trainer_config(path, Asked(num_gpus=2, find_model=find_model))
    assert (STAY_WHOLE in read.notes) is is_told
