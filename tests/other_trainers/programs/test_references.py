"""The reference that a program gives a trainer of preferences, and which of two models is trained."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

TEXT = """from copy import deepcopy
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import {kind}Config, {kind}Trainer
model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", dtype="bfloat16")
reference = {reference}
arguments = {kind}Config(output_dir="out", per_device_train_batch_size=2)
{kind}Trainer(model=model, ref_model=reference, args=arguments, train_dataset=rows{more}).train()
"""
SAME = 'AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", dtype="bfloat16")'


@pytest.fixture
def read(tmp_path: Path):
    def of(reference: str, kind: str = "DPO", more: str = "") -> TrainerConfig:
        path = tmp_path / "train.py"
        path.write_text(TEXT.format(reference=reference, kind=kind, more=more), encoding="utf-8")
        return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))

    return of


@pytest.mark.parametrize("kind", ["DPO", "KTO"])
def test_a_copy_of_the_model_is_what_trl_would_make(read, kind):
    alone = read("None", kind)
    assert alone.options["model"] == "qwen2.5-0.5b"
    for copy in (SAME, "deepcopy(model)"):
        assert read(copy, kind).options == alone.options


@pytest.mark.parametrize("kind", ["DPO", "KTO"])
def test_another_reference_is_refused_and_never_taken_for_the_model(read, kind):
    with pytest.raises(
        InputError, match=r'"qwen3-4b", and the model is "qwen2\.5-0\.5b": a copy of the model is planned'
    ):
        read(SAME.replace("qwen2.5-0.5b", "qwen3-4b"), kind)
    with pytest.raises(InputError, match=r"ref_model of .* is reference, of which only running the program tells"):
        read("chosen()", kind)


def test_a_reference_of_another_type_is_no_copy(read):
    with pytest.raises(InputError, match='loaded without dtype, and the model is "bfloat16"'):
        read('AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b")')


def test_a_reference_beside_adapters_is_a_whole_model_more(read):
    adapters = ", peft_config=LoraConfig(r=4)"
    assert read("None", more=adapters).options["method"] == "lora"
    with pytest.raises(InputError, match="a whole model beside that with adapters: not planned"):
        read(SAME, more=adapters)


def test_a_reference_that_unsloth_loads_is_not_taken_for_the_model(tmp_path):
    text = """from trl import DPOConfig, DPOTrainer
from unsloth import FastLanguageModel
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-4B", load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=8)
{reference}
DPOTrainer(model=model, ref_model=reference, args=DPOConfig(output_dir="out"), train_dataset=rows)
"""
    path = tmp_path / "train.py"
    path.write_text(text.format(reference="reference = None"), encoding="utf-8")
    asked = Asked(num_gpus=1, find_model=find_model)
    assert read_trainer_config(path, asked).options["model"] == "Qwen/Qwen3-4B"
    other = 'reference, _ = FastLanguageModel.from_pretrained("unsloth/Qwen3-8B")'
    path.write_text(text.format(reference=other), encoding="utf-8")
    with pytest.raises(InputError, match="a whole model beside that with adapters: not planned"):
        read_trainer_config(path, asked)
