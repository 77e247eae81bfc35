"""Casts of the model that a program has loaded."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

TEXT = """import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
other = AutoModelForCausalLM
{loads}
{changes}
trainer = Trainer(model=model, args=TrainingArguments(output_dir="out", bf16=True), train_dataset=rows)
trainer.train()
"""
LOADS = 'model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b"{})'
ADAPTERS = 'model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))\n'


@pytest.fixture
def read(tmp_path: Path):
    def of(changes: str = "", loads: str = LOADS.format("")) -> TrainerConfig:
        (tmp_path / "train.py").write_text(TEXT.format(loads=loads, changes=changes), encoding="utf-8")
        return read_trainer_config(tmp_path / "train.py", Asked(num_gpus=1, find_model=find_model))

    return of


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ("model = model.float()", "float32"),
        ("model.to(torch.float32)", "float32"),
        ("model = model.to('cuda', dtype=torch.float32)", "float32"),
        ("model = model.cuda().float()", "float32"),
        ("wide = torch.float32\nmodel.to(wide)", "float32"),
        ("def widen(model):\n    return model.float()\nmodel = widen(model)", "float32"),
        ("model.half()", "float16"),
        ("model.float()\nmodel.bfloat16()", "bfloat16"),
        ("model.float()\n" + ADAPTERS, "float32"),
    ],
)
def test_a_model_that_is_cast_is_as_one_that_is_loaded_so(changes, kind, read):
    found = read(changes)
    adapters = ADAPTERS if ADAPTERS in changes else ""
    assert found.options == read(adapters, LOADS.format(f", dtype=torch.{kind}")).options
    assert f"dtype {kind}" in map(str, found.said)


def test_a_model_that_is_cast_where_it_is_loaded(read):
    narrow = read(loads=LOADS.format(", dtype=torch.bfloat16"))
    wide = read(loads=LOADS.format(", dtype=torch.float32"))
    assert narrow.options != wide.options
    assert read(loads=LOADS.format(", dtype=torch.bfloat16") + ".float()").options == wide.options
    assert read(loads=LOADS.format(", dtype=torch.float32") + ".to('cuda')").options == wide.options


@pytest.mark.parametrize("changes", ["rows = rows.float()", "scores.half()", "model.to('cuda')", "model.to(device)"])
def test_what_casts_no_weight_of_the_model_changes_nothing(changes, read):
    assert read(changes).options == read().options


def test_a_cast_after_training_changes_nothing(tmp_path, read):
    plain = read()
    text = TEXT.format(loads=LOADS.format(""), changes="") + "model = model.float()\nmodel.save_pretrained('out')\n"
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    found = read_trainer_config(tmp_path / "train.py", Asked(num_gpus=1, find_model=find_model))
    assert found.options == plain.options


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (ADAPTERS + "model = model.to(torch.bfloat16)", "casts what get_peft_model has made, too"),
        ("model = prepare_model_for_kbit_training(model)\nmodel.half()", "casts what prepare_model_for_kbit_training"),
        ("model.double()", r"model.double\(\); one of float32, bfloat16, float16 is planned"),
        ("if wide():\n    model.float()", r"dtype is model.float\(\), which only running the program tells"),
        ("model.to(dtype=own.dtype)", "dtype is own.dtype, which only running the program tells"),
    ],
)
def test_a_cast_of_which_the_type_or_the_weights_are_not_planned_is_refused(changes, sentence, read):
    with pytest.raises(InputError, match=sentence):
        read(changes)


def test_a_model_of_packed_weights_is_not_cast(read):
    packed = LOADS.format(", quantization_config=BitsAndBytesConfig(load_in_4bit=True)")
    with pytest.raises(InputError, match=r"model.half\(\) casts a model whose weights are packed"):
        read("model.half()\n" + ADAPTERS, packed)
