"""Packing and rows without padding in the configurations of other trainers, read and written."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.other_trainers.writing.batching import neat_packing_keys, packing_keys
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Batching
from vlmplan.request import parse

TRL = {"model_name_or_path": "Qwen/Qwen3-0.6B", "dataset_name": "x", "use_peft": False}
SWIFT = {"model": "Qwen/Qwen3-0.6B", "dataset": "x", "max_length": 512, "tuner_type": "full", "torch_dtype": "bfloat16"}
FACTORY = {"model_name_or_path": "Qwen/Qwen3-0.6B", "stage": "sft", "dataset": "x", "template": "qwen3", "bf16": "true"}


def batching_of(folder: Path, keys: dict[str, object]) -> Batching | None:
    path = folder / "train.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in keys.items()))
    return parse({"config": str(path), "model": "qwen3-0.6b", "gpu": "a100-sxm4-80gb"}).recipe.batching


@pytest.mark.parametrize(
    ("keys", "batching"),
    [
        (TRL, None),
        (TRL | {"padding_free": "true"}, Batching.PADDING_FREE),
        (TRL | {"packing": "true"}, Batching.PACKED),
        (TRL | {"packing": "true", "packing_strategy": "wrapped"}, None),
        (SWIFT | {"padding_free": "true", "attn_impl": "flash_attn"}, Batching.PADDING_FREE),
        (SWIFT | {"packing": "true", "attn_impl": "flash_attn"}, Batching.PACKED),
        (FACTORY | {"packing": "true"}, None),
        (FACTORY | {"neat_packing": "true", "flash_attn": "fa2", "per_device_train_batch_size": 1}, Batching.PACKED),
    ],
)
def test_each_trainer_says_it_by_its_own_keys(tmp_path: Path, keys: dict[str, object], batching: Batching | None):
    assert batching_of(tmp_path, keys) is batching


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (SWIFT | {"packing": "true", "attn_impl": "sdpa"}, "flash_attn alone"),
        (FACTORY | {"neat_packing": "true", "flash_attn": "sdpa"}, "a mask of its own"),
        (
            FACTORY | {"neat_packing": "true", "flash_attn": "fa2", "per_device_train_batch_size": 2},
            "per_device_train_batch_size: 1 alone",
        ),
    ],
)
def test_what_the_trainer_or_the_plan_does_not_have_is_refused(tmp_path: Path, keys: dict[str, object], reason: str):
    with pytest.raises(InputError, match=reason):
        batching_of(tmp_path, keys)


def test_what_is_written_is_what_is_read(tmp_path: Path):
    for batching in Batching:
        keys = {key: str(value).lower() for key, value in packing_keys(Recipe(batching=batching)).items()}
        assert (batching_of(tmp_path, TRL | keys) or Batching.PADDED) is batching
    keys = {key: str(value).lower() for key, value in neat_packing_keys(Recipe(batching=Batching.PACKED)).items()}
    its = FACTORY | keys | {"flash_attn": "fa2", "per_device_train_batch_size": 1}
    assert batching_of(tmp_path, its) is Batching.PACKED
