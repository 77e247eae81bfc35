"""Which trainers' checkpoints are reentrant, and what is said of them under ZeRO-3."""

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
CALLS = "reentrant-calls"


@pytest.mark.parametrize(
    ("keys", "stage", "kind", "is_told"),
    [
        (LLAMA_FACTORY | LORA, 3, CALLS, True),
        (LLAMA_FACTORY | LORA | {"use_reentrant_gc": False}, 3, None, False),
        (LLAMA_FACTORY | LORA | {"disable_gradient_checkpointing": True}, 3, None, False),
        (LLAMA_FACTORY | LORA, 2, CALLS, False),
        (LLAMA_FACTORY | {"finetuning_type": "full"}, 3, CALLS, False),
        (AXOLOTL | OF_AXOLOTL, 3, "reentrant", False),
        (AXOLOTL | OF_AXOLOTL | {"gradient_checkpointing_kwargs": {"use_reentrant": False}}, 3, None, False),
    ],
)
def test_the_kind_is_read_and_what_it_costs_is_told(keys, stage: int, kind, is_told: bool, tmp_path: Path):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}))
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps({**keys, "deepspeed": str(tmp_path / "ds.json")}))
    read = read_trainer_config(path, Asked(num_gpus=2, find_model=find_model))
    assert read.options.get("checkpoint_kind") == kind
    assert (STAY_WHOLE in read.notes) is is_told
