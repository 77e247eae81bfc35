"""Programs that take their arguments from a command by TrlParser or HfArgumentParser, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

PROGRAM = """
from transformers import AutoModelForCausalLM
from trl import {trainer}, {trainer_config}, ModelConfig, ScriptArguments, TrlParser, get_peft_config

def main(script_args, training_args, model_args):
    {loads}
    trainer = {trainer}(
        model={model},
        args=training_args,
        train_dataset=load_dataset(script_args.dataset_name)["train"],
        {adapters}
    )
    trainer.train()

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, {trainer_config}, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    main(script_args, training_args, model_args)
"""
USUAL = {
    "trainer": "SFTTrainer",
    "trainer_config": "SFTConfig",
    "loads": "pass",
    "model": "model_args.model_name_or_path",
    "adapters": "peft_config=get_peft_config(model_args),",
}
KEYS: dict[str, Any] = {
    "model_name_or_path": "qwen2.5-0.5b",
    "per_device_train_batch_size": 2,
    "max_length": 256,
    "bf16": True,
    "use_peft": True,
    "lora_r": 4,
}
LOADED = {"loads": "model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)", "model": "model"}


def read(folder: Path, command: str, keys: dict[str, Any] | None = None, **parts: str) -> TrainerConfig:
    (folder / "mine.py").write_text(PROGRAM.format(**USUAL | parts), encoding="utf-8")
    return started(folder, command, KEYS if keys is None else keys)


def started(folder: Path, command: str, keys: dict[str, Any]) -> TrainerConfig:
    (folder / "keys.yaml").write_text(json.dumps(keys), encoding="utf-8")
    (folder / "run.sh").write_text(f"#!/bin/bash\n{command}\n", encoding="utf-8")
    return read_trainer_config(folder / "run.sh", Asked(num_gpus=1, find_model=find_model))


WITH_FILE = "accelerate launch mine.py --config keys.yaml"


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "reward", "grpo"])
def test_it_is_planned_as_trls_own_command_with_the_same_keys(kind, tmp_path):
    name = {"reward": "Reward"}.get(kind, kind.upper())
    keys = KEYS | ({"lora_task_type": "SEQ_CLS"} if kind == "reward" else {})
    keys |= {"num_generations": 2} if kind == "grpo" else {}
    if kind == "grpo":
        del keys["max_length"]
    own = read(tmp_path, WITH_FILE, keys, trainer=f"{name}Trainer", trainer_config=f"{name}Config")
    trls = started(tmp_path, f"trl {kind} --config keys.yaml", keys)
    assert own.options == trls.options
    assert f"{name}Trainer of mine.py is planned with these arguments" in own.notes[-1]


def test_the_commands_options_go_before_those_of_its_file(tmp_path):
    found = read(tmp_path, f"{WITH_FILE} --max_length 64 --per_device_train_batch_size 3").options
    assert (found["seq_len"], found["micro_batch"], found["lora_rank"]) == (64, 3, 4)


def test_options_alone_are_those_of_the_programs_trainer_and_not_of_the_plain_one(tmp_path):
    options = "--model_name_or_path qwen2.5-0.5b --per_device_train_batch_size 2 --bf16"
    of_program = read(tmp_path, f"python mine.py {options}")
    (tmp_path / "mine.py").unlink()
    assert started(tmp_path, f"python mine.py {options}", KEYS).trainer != of_program.trainer
    assert of_program.options["seq_len"] == 1024


def test_a_model_that_the_program_loads_has_the_type_that_it_writes(tmp_path):
    narrow = LOADED | {"loads": LOADED["loads"].replace("path)", "path, torch_dtype=torch.bfloat16)")}
    full = {key: value for key, value in KEYS.items() if key != "use_peft"} | {"dtype": "float32"}
    found = [read(tmp_path, WITH_FILE, full, **parts).options for parts in (LOADED, narrow, {})]
    assert found[0]["weight_dtype"] == found[1]["weight_dtype"] != found[2]["weight_dtype"]


def test_a_program_that_is_not_here_leaves_it_to_the_keys_and_says_so(tmp_path):
    found = started(tmp_path, WITH_FILE, KEYS)
    assert found.options == started(tmp_path, "trl sft --config keys.yaml", KEYS).options
    assert "mine.py is not here: planned as the keys of keys.yaml say whose they are" in found.notes[-1]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"adapters": ""}, "use_peft is true, but mine.py does not call get_peft_config, without which it has no"),
        (
            {"adapters": "peft_config=make_adapters(LoraConfig(r=8)),"},
            "mine.py writes LoraConfig itself and takes the rest from a",
        ),
        (
            {"loads": "bits = BitsAndBytesConfig(load_in_4bit=True)"},
            "writes BitsAndBytesConfig itself .*get_quantization_config of its arguments is",
        ),
    ],
)
def test_what_a_program_makes_of_its_arguments_itself_is_refused(parts, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path, WITH_FILE, **parts)


def test_adapters_of_the_programs_own_stand_beside_the_models_arguments(tmp_path):
    own = {"adapters": 'peft_config=LoraConfig(r=8, lora_alpha=model_args.lora_alpha, target_modules=["q_proj"]),'}
    found = read(tmp_path, WITH_FILE, **own)
    assert [found.options[name] for name in ("lora_rank", "lora_alpha", "lora_targets")] == [8, 32, "q_proj"]
    assert found.options["seq_len"] == 256
    assert any("lora_r" in note and "mine.py does not read" in note for note in found.notes)


def test_the_models_arguments_may_be_a_class_of_the_programs_own(tmp_path):
    own = {"adapters": "peft_config=LoraConfig(r=model_args.more + model_args.lora_r, target_modules='all-linear'),"}
    named = "@dataclass\nclass Mine(ModelConfig):\n    more: int = 3\n\n"
    text = PROGRAM.format(**USUAL | own).replace("def main", f"{named}def main").replace(", ModelConfig))", ", Mine))")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    assert started(tmp_path, WITH_FILE, KEYS).options["lora_rank"] == 7
    assert started(tmp_path, f"{WITH_FILE} --more 1", KEYS).options["lora_rank"] == 5


IMPORTED = """
from dataclasses import dataclass, field
import transformers

@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="none")

@dataclass
class OwnArguments(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")

def train():
    parser = transformers.HfArgumentParser((ModelArguments, OwnArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    model = transformers.AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    transformers.Trainer(model=model, args=training_args).train()
"""


def test_a_program_that_imports_all_it_does_takes_its_arguments_as_the_file_it_is_from(tmp_path):
    (tmp_path / "training.py").write_text(IMPORTED, encoding="utf-8")
    (tmp_path / "mine.py").write_text("from training import train\n\ntrain()\n", encoding="utf-8")
    command = "torchrun --nproc_per_node=2 mine.py --model_name_or_path qwen2.5-0.5b --per_device_train_batch_size 3"
    found = started(tmp_path, f"{command} --bf16 True", {})
    assert (found.options["model"], found.options["micro_batch"]) == ("qwen2.5-0.5b", 3)
    assert found.options["fuses_optimizer"] is False  # the default of its own class


def test_defaults_of_a_programs_own_class_stand_where_only_its_options_are_read(tmp_path):
    """It gives attributes whose names nobody knows, so that no object's are known."""
    odd = "def patch(one, names):\n    for name in names:\n        setattr(one, name, None)\n"
    (tmp_path / "mine.py").write_text(f"{IMPORTED}\n{odd}\npatch(object(), [])\ntrain()\n", encoding="utf-8")
    command = "torchrun --nproc_per_node=2 mine.py --model_name_or_path qwen2.5-0.5b --per_device_train_batch_size 3"
    found = started(tmp_path, f"{command} --bf16 True", {})
    assert found.options["fuses_optimizer"] is False
    assert "optim adamw_torch: by default of mine.py's own class of arguments" in found.notes
    said = started(tmp_path, f"{command} --bf16 True --optim adamw_torch_fused", {})
    assert said.options["fuses_optimizer"] is True


HANDBOOK = """
import torch
from dataclasses import dataclass, field
from transformers import BitsAndBytesConfig, HfArgumentParser, TrainingArguments
from peft import LoraConfig
from trl import SFTTrainer

class H4ArgumentParser(HfArgumentParser):
    pass

@dataclass
class ModelArguments:
    model_name_or_path: str = field(default=None)
    torch_dtype: str = field(default=None)
    use_flash_attention_2: bool = field(default=False)
    use_peft: bool = field(default=False)
    load_in_4bit: bool = field(default=False)
    lora_r: int = field(default=16)

def quantization(model_args):
    if model_args.load_in_4bit:
        return BitsAndBytesConfig(load_in_4bit=True)
    return None

def adapters(model_args):
    if model_args.use_peft is False:
        return None
    config = LoraConfig(r=model_args.lora_r)
    return config

def main():
    model_args, training_args = H4ArgumentParser((ModelArguments, TrainingArguments)).parse()
    kwargs = dict(
        torch_dtype=getattr(torch, model_args.torch_dtype),
        use_flash_attention_2=model_args.use_flash_attention_2,
        quantization_config=quantization(model_args),
    )
    trainer = SFTTrainer(
        model=model_args.model_name_or_path,
        model_init_kwargs=kwargs,
        args=training_args,
        max_seq_length=96,
        peft_config=adapters(model_args),
    )
    trainer.train()

main()
"""
RECIPE = {
    "model_name_or_path": "qwen2.5-0.5b",
    "torch_dtype": "bfloat16",
    "use_flash_attention_2": True,
    "use_peft": True,
    "load_in_4bit": True,
    "lora_r": 4,
    "bf16": True,
    "per_device_train_batch_size": 2,
}


def test_a_recipe_may_stand_before_the_options_that_change_it_as_alignment_handbooks_parser_takes_them(tmp_path):
    (tmp_path / "mine.py").write_text(HANDBOOK, encoding="utf-8")
    as_said = started(tmp_path, "accelerate launch --num_processes 1 mine.py keys.yaml --lora_r=8", RECIPE)
    assert [as_said.options[key] for key in ("method", "lora_rank", "attention")] == ["qlora", 8, "flash_attention_2"]
    assert [as_said.options[key] for key in ("seq_len", "micro_batch")] == [96, 2]
    unpacked = started(tmp_path, "accelerate launch --num_processes 1 mine.py keys.yaml --load_in_4bit=false", RECIPE)
    assert unpacked.options["method"] == "lora"
    whole = {**RECIPE, "use_peft": False, "load_in_4bit": False, "use_flash_attention_2": False}
    plain = started(tmp_path, "accelerate launch --num_processes 1 mine.py keys.yaml", whole)
    assert [plain.options.get(key) for key in ("method", "attention")] == ["full", None]


def test_a_recipe_that_a_program_of_dpo_is_started_with_is_read_by_its_keys(tmp_path):
    keys = {"precompute_ref_log_probs": False, "max_completion_length": None, "beta": 0.1, "loss_type": "robust"}
    found = started(tmp_path, "accelerate launch --num_processes 1 run_dpo.py keys.yaml", KEYS | keys)
    assert found.options["task"] == "dpo"


def test_the_program_alone_says_which_file_to_give(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM.format(**USUAL), encoding="utf-8")
    said = call("check", str(tmp_path / "mine.py"), "--gpu", "a100-sxm4-80gb").err
    assert "give the shell script that holds that, which is read with the program beside it, or the YAML" in said


def test_a_deepspeed_file_in_place_of_accelerates_is_told_where_it_belongs(tmp_path):
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    with pytest.raises(
        InputError, match=r"zero3.json is a DeepSpeed file, which accelerate launch takes as --deepspeed"
    ):
        read(tmp_path, "accelerate launch --config_file zero3.json mine.py --config keys.yaml")


@pytest.mark.sweep
def test_a_file_that_does_not_fit_is_changed_where_it_stands(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM.format(**USUAL), encoding="utf-8")
    options = "--model_name_or_path qwen2.5-7b --per_device_train_batch_size 16 --max_length 8192 --bf16 --use_peft"
    (tmp_path / "run.sh").write_text(f"python mine.py {options}\n", encoding="utf-8")
    proposal = call("check", str(tmp_path / "run.sh"), "--gpu", "a100-sxm4-40gb:1", "--fix").out
    assert "per_device_train_batch_size 16 -> " in proposal
