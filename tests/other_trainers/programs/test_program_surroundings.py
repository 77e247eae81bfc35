"""What a program sets for its whole process, and puts around its model: refused by its text where it changes memory or
time, passed by where it does not."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

TEXT = """import torch
from accelerate import Accelerator
from liger_kernel.transformers import apply_liger_kernel_to_llama, apply_liger_kernel_to_qwen2
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
{before}
model = AutoModelForCausalLM.from_pretrained("{name}", dtype=torch.bfloat16)
{changes}
args = {arguments}(output_dir="out"{given})
{between}
trainer = {trainer}(model=model, args=args, train_dataset=rows)
{late}
trainer.train()
"""
EMPTY = dict.fromkeys(("before", "changes", "given", "between", "late"), "")
PLAIN = EMPTY | {"trainer": "Trainer", "arguments": "TrainingArguments", "name": "qwen2.5-0.5b"}
OF_TRL = {"trainer": "SFTTrainer", "arguments": "SFTConfig"}
ON = {"given": ", gradient_checkpointing=True"}


@pytest.fixture
def read(tmp_path: Path):
    def of(**texts: str) -> TrainerConfig:
        (tmp_path / "train.py").write_text(TEXT.format(**(PLAIN | texts)), encoding="utf-8")
        return read_trainer_config(tmp_path / "train.py", Asked(num_gpus=1, find_model=find_model))

    return of


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"before": "torch.cuda.set_per_process_memory_fraction(0.5)"}, "a part of the GPU's memory"),
        ({"before": "torch.cuda.set_per_process_memory_fraction(share, 0)"}, "a part of the GPU's memory"),
        ({"before": "torch.set_default_dtype(torch.bfloat16)"}, "the type of all that is made without one"),
        ({"before": "torch.set_default_dtype(torch.float64)"}, "the type of all that is made without one"),
        ({"before": "torch.set_default_tensor_type(torch.BFloat16Tensor)"}, "the type of all that is made without one"),
        ({"changes": "model = torch.nn.DataParallel(model)"}, "shares the model out before the trainer does"),
        ({"changes": "model = torch.nn.DataParallel(module=model)"}, "shares the model out before the trainer does"),
        ({"changes": "from torch.nn import DataParallel as DP\nmodel = DP(model)"}, "shares the model out before"),
        ({"changes": 'model = Accelerator(mixed_precision="bf16").prepare(model)'}, "puts the model under autocast"),
    ],
)
@pytest.mark.parametrize("trainer", [{}, OF_TRL])
def test_what_changes_memory_or_time_is_refused(texts, sentence, trainer, read):
    with pytest.raises(InputError, match=f"{sentence}.*: not planned; leave it out"):
        read(**trainer, **texts)


@pytest.mark.parametrize(
    "texts",
    [
        {"before": "torch.cuda.set_per_process_memory_fraction(1.0)"},
        {"before": "torch.set_default_dtype(torch.float32)"},
        {"before": "WIDE = torch.float32\ntorch.set_default_dtype(WIDE)"},
        {"before": "torch.set_default_tensor_type('torch.FloatTensor')"},
        {"before": "other = torch.nn.DataParallel(Judge())"},
        {"before": 'accelerator = Accelerator(mixed_precision="fp16")'},
        {"given": ", bf16=True", "between": 'accelerator = Accelerator(mixed_precision="bf16")'},
        {"changes": "model = Accelerator().prepare(model)"},
        {"late": "torch.set_default_dtype(torch.bfloat16)"},
    ],
)
def test_what_changes_nothing_is_passed_by(texts, read):
    assert read(**texts).options == read(given=texts.get("given", "")).options


def test_an_accelerator_behind_the_arguments_has_their_precision(read):
    """accelerate 1.15 stops where the trainer's own has another."""
    between = 'accelerator = Accelerator(mixed_precision="fp16")'
    with pytest.raises(InputError, match="the trainer's arguments, which say bf16, and accelerate stops"):
        read(given=", bf16=True", between=between)
    with pytest.raises(InputError, match="the trainer's arguments, which say no, and accelerate stops"):
        read(between=between)


VARIABLE = 'import os\nos.environ["ACCELERATE_MIXED_PRECISION"] = '


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_accelerates_variable_is_the_precision_of_arguments_that_say_none(kind, read):
    """As ``TrainingArguments`` of transformers 5.23 with accelerate 1.15 do (seen)."""
    given = f", {kind}=True"
    assert read(before=f'{VARIABLE}"{kind}"').options == read(given=given).options != read().options
    off = read(before=f'{VARIABLE}"{kind}"', given=", bf16=False", **OF_TRL)
    assert off.options == read(given=f"{given}" if kind == "bf16" else f", bf16=False{given}", **OF_TRL).options


def test_arguments_that_say_a_precision_go_before_accelerates_variable(read):
    other = f'{VARIABLE}"fp16"'
    assert read(before=other, given=", bf16=True").options == read(given=", bf16=True").options
    assert read(before=other, **OF_TRL).options == read(**OF_TRL).options
    assert read(before=f'{VARIABLE}"no"').options == read().options


@pytest.mark.parametrize("value", ['"fp8"', "kind"])
def test_a_precision_by_accelerates_variable_that_is_not_planned_is_refused(value, read):
    with pytest.raises(InputError, match=r"ACCELERATE_MIXED_PRECISION is .*, where fp16, bf16 and no are planned"):
        read(before=VARIABLE + value)
    assert read(before=VARIABLE + value, given=", bf16=True").options == read(given=", bf16=True").options


def test_a_model_that_is_shared_out_on_several_gpus_alone_is_not_on_one(read):
    found = read(changes="if torch.cuda.device_count() > 1:\n    model = torch.nn.DataParallel(model)")
    assert found.options == read().options
    assert any("DataParallel(model) is taken not to run" in note for note in found.notes)


@pytest.mark.parametrize("attribute", ["model.model.gradient_checkpointing", "model.gradient_checkpointing"])
def test_checkpoints_of_a_part_are_refused_where_the_trainer_has_others(attribute, read):
    with pytest.raises(InputError, match="switches checkpoints of a part of the model: not planned"):
        read(changes=f"{attribute} = True")
    with pytest.raises(InputError, match="switches checkpoints of a part of the model: not planned"):
        read(changes=f"model.gradient_checkpointing_enable()\n{attribute} = False")


@pytest.mark.parametrize(
    ("texts", "alike"),
    [
        ({"changes": "model.model.gradient_checkpointing = True"} | ON, ON),
        ({"changes": "model.model.gradient_checkpointing = False"} | ON, ON),
        ({"changes": "model.model.gradient_checkpointing = True"} | OF_TRL, OF_TRL),
        ({"changes": "model.model.gradient_checkpointing = False"}, {}),
        ({"changes": "model.gradient_checkpointing_enable()\nmodel.model.gradient_checkpointing = True"}, ON),
    ],
)
def test_checkpoints_of_a_part_that_are_as_the_trainers_are_passed_by(texts, alike, read):
    options = read(**texts).options
    assert options["activation_checkpointing"] is read(**alike).options["activation_checkpointing"]


def test_a_function_of_liger_for_another_type_of_model_is_refused(read):
    own, other = "apply_liger_kernel_to_qwen2()", "apply_liger_kernel_to_llama()"
    with pytest.raises(InputError, match=r"apply_liger_kernel_to_llama patches .* \(model_type qwen2\)"):
        read(before=other)
    assert read(before=f"{other}\n{own}").options == read(before=own).options != read().options
    assert (
        read(before=other, name="llama-3.2-1b").options
        == read(name="llama-3.2-1b", given=", use_liger_kernel=True").options
    )
