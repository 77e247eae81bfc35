"""What ``use_liger_kernel`` and its like mean in each trainer, and how they are written."""

import json

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked
from vlmplan.other_trainers.read import read_trainer_config

LLAMA_FACTORY = {"stage": "sft", "finetuning_type": "lora", "bf16": True}
MS_SWIFT = {"tuner_type": "lora", "torch_dtype": "bfloat16"}
TRL = {"dataset_name": "d", "use_peft": True, "lora_target_modules": "all-linear"}
ON = {"use_liger_kernel": True}


@pytest.fixture
def read(tmp_path):
    def options(values, model="qwen2.5-0.5b"):
        path = tmp_path / "train.json"
        path.write_text(json.dumps(values), encoding="utf-8")
        config = read_trainer_config(path, Asked(model=model, find_model=find_model, num_gpus=1))
        return config.options.get("loss"), config.options.get("liger_layers", False)

    return options


def test_in_ms_swift_and_llama_factory_it_is_the_loss_and_the_layers(read):
    assert read(MS_SWIFT | ON) == ("liger", True)
    assert read(LLAMA_FACTORY | {"enable_liger_kernel": True}) == ("liger", True)
    assert read(MS_SWIFT | {"use_liger_kernel": False}) == ("model", False)


def test_trl_keeps_its_own_loss(read):
    assert read(TRL | ON) == ("trl", True)
    with pytest.raises(InputError, match="does not take Liger's fused loss"):
        read(TRL | ON | {"liger_kernel_config": {"fused_linear_cross_entropy": True}})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"fused_linear_cross_entropy": False}, ("model", True)),
        ({"rms_norm": False, "rope": False, "swiglu": False}, ("liger", False)),
    ],
    ids=str,
)
def test_the_table_of_kernels_turns_parts_off(read, table, expected):
    assert read(MS_SWIFT | ON | {"liger_kernel_config": table}) == expected


@pytest.mark.parametrize("table", [{"rope": False}, {"cross_entropy": True}], ids=str)
def test_what_is_not_planned_of_the_table_is_refused(read, table):
    with pytest.raises(InputError, match="liger_kernel_config"):
        read(MS_SWIFT | ON | {"liger_kernel_config": table})


def test_llama_factory_does_nothing_for_models_that_it_has_no_kernels_for(read):
    assert read(LLAMA_FACTORY | {"enable_liger_kernel": True}, model="smollm3-3b") == ("model", False)


def test_the_head_that_liger_reads_is_said_not_to_be_counted_only_where_it_is_not(tmp_path):
    path = tmp_path / "train.json"
    without = {"liger_kernel_config": {"rms_norm": False, "rope": False, "swiglu": False}}
    for more, is_noted in (({}, False), (without, True)):
        path.write_text(json.dumps(MS_SWIFT | ON | {"deepspeed": "zero3"} | more), encoding="utf-8")
        config = read_trainer_config(path, Asked(model="qwen2.5-0.5b", find_model=find_model, num_gpus=2))
        assert any("which is not counted" in note for note in config.notes) is is_noted


EVALUATES = {"eval_strategy": "steps", "eval_steps": 50}
AXOLOTL = {
    "base_model": "b",
    "plugins": ["axolotl.integrations.liger.LigerPlugin"],
    "liger_fused_linear_cross_entropy": True,
    "val_set_size": 0.1,
    "evals_per_epoch": 1,
    "datasets": [{"path": "d", "type": "alpaca"}],
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_epochs": 1,
    "bf16": True,
    "attn_implementation": "flash_attention_2",
}
CUT = {"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"], "cut_cross_entropy": True}


@pytest.mark.parametrize(
    ("values", "fuses"),
    [
        (LLAMA_FACTORY | EVALUATES | {"enable_liger_kernel": True, "val_size": 0.1}, False),
        (LLAMA_FACTORY | EVALUATES | ON | {"val_size": 0.1}, None),
        (MS_SWIFT | EVALUATES | ON, None),
        (LLAMA_FACTORY | {"enable_liger_kernel": True}, None),
        (AXOLOTL, False),
        ({**AXOLOTL, **CUT, "liger_fused_linear_cross_entropy": None}, None),
    ],
    ids=["llamafactory", "its-trainer", "ms-swift", "without-evaluation", "axolotl", "cut"],
)
def test_who_applies_liger_without_the_trainer_makes_all_logits_in_evaluation(tmp_path, values, fuses):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    config = read_trainer_config(path, Asked(model="qwen2.5-0.5b", find_model=find_model, num_gpus=1))
    assert config.options["loss"] == "liger"
    assert config.options.get("eval_fused_loss") is fuses
