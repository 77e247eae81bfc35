"""Which trainers' checkpoints are reentrant, and what is said of them with adapters under ZeRO-3."""

import json
from pathlib import Path

import pytest

from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.axolotl.reading import WITH_ITS_DEEPSPEED
from vlmplan.other_trainers.llama_factory.checkpoints import WITH_NEWER, WITH_OLDER
from vlmplan.other_trainers.read import read_trainer_config

LLAMA_FACTORY = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "stage": "sft", "do_train": True, "bf16": True}
AXOLOTL = {"base_model": "Qwen/Qwen2.5-0.5B", "bf16": True, "gradient_checkpointing": True, "datasets": []}
LORA = LLAMA_FACTORY | {"lora_target": "all", "finetuning_type": "lora"}
OF_AXOLOTL = AXOLOTL | {"adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_target_linear": True}
TOLD = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}


@pytest.mark.parametrize(
    ("keys", "stage", "kind", "said"),
    [
        (LORA, 3, "reentrant", WITH_NEWER),
        (LORA | {"use_reentrant_gc": False}, 3, None, WITH_OLDER),
        (LORA | {"disable_gradient_checkpointing": True}, 3, None, None),
        (LORA, 2, "reentrant", None),
        (LORA | {"use_reentrant_gc": False}, 2, None, None),
        (LLAMA_FACTORY | {"finetuning_type": "full"}, 3, "reentrant", None),
        (OF_AXOLOTL, 3, "reentrant", None),
        (OF_AXOLOTL | TOLD, 3, None, WITH_ITS_DEEPSPEED),
        (OF_AXOLOTL | TOLD, 2, None, None),
    ],
)
def test_the_kind_is_read_and_what_versions_make_of_it_is_said(keys, stage: int, kind, said, tmp_path: Path):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}, "bf16": {"enabled": True}}))
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps({**keys, "deepspeed": str(tmp_path / "ds.json")}))
    read = read_trainer_config(path, Asked(num_gpus=2, find_model=find_model))
    assert read.options.get("checkpoint_kind") == kind
    assert [one for one in (WITH_NEWER, WITH_OLDER, WITH_ITS_DEEPSPEED) if one in read.notes] == (
        [said] if said else []
    )
