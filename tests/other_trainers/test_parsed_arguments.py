"""Programs whose own classes hold what a command says, by HfArgumentParser: read as if they had made the objects."""

from pathlib import Path

import pytest

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

PROGRAM = """
import sys
from dataclasses import dataclass, field
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer

@dataclass
class Common:
    name: str = field(default="qwen2.5-0.5b")

@dataclass
class Adapted(Common):
    use_lora: bool = False
    rank: int = 4

@dataclass
class Data:
    path: str
    model_max_length: int = 2048

@dataclass
class TrainingArguments(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")
    num_slots: int = field(default=4)

def train():
    parser = HfArgumentParser((Adapted, Data, TrainingArguments))
    {parses}
    config = AutoConfig.from_pretrained(own.name)
    config.use_cache = False
    kind = torch.bfloat16 if args.bf16 else None
    model = AutoModelForCausalLM.from_pretrained(own.name, config=config, torch_dtype=kind)
    if own.use_lora:
        model = get_peft_model(model, LoraConfig(r=own.rank, target_modules=["q_proj", "v_proj"]))
    if args.gradient_checkpointing:
        model.enable_input_require_grads()
    {changes}
    Trainer(model=model, args=args, train_dataset=load(data.path)).train()

train()
"""
PARSES = "own, data, args = parser.parse_args_into_dataclasses()"
OPTIONS = "--path chats.json --output_dir out --bf16 True"


def read(folder: Path, options: str = "", *, parses: str = PARSES, changes: str = "pass") -> TrainerConfig:
    (folder / "mine.py").write_text(PROGRAM.format(parses=parses, changes=changes), encoding="utf-8")
    (folder / "run.sh").write_text(f"#!/bin/bash\npython mine.py {OPTIONS} {options}\n", encoding="utf-8")
    return read_trainer_config(folder / "run.sh", Asked(num_gpus=1, find_model=find_model))


def test_options_are_of_the_class_that_has_their_field_and_others_are_the_trainers(tmp_path):
    found = read(tmp_path, "--use_lora True --rank 8 --per_device_train_batch_size 3 --model_max_length 512")
    options = found.options
    assert (options["method"], options["lora_rank"], options["micro_batch"]) == ("lora", 8, 3)
    assert (options["seq_len"], options["model"]) == (512, "qwen2.5-0.5b")
    assert "mine.py is read with the options that" in " ".join(found.notes)


def test_fields_that_nothing_is_said_of_are_worth_their_defaults(tmp_path):
    found = read(tmp_path, "--per_device_train_batch_size 3").options
    assert (found["method"], found["fuses_optimizer"]) == ("full", False)
    assert read(tmp_path, "--per_device_train_batch_size 3 --optim adamw_torch_fused").options["fuses_optimizer"]


def test_fields_that_a_class_has_beside_the_trainers_arguments_mean_nothing_to_it(tmp_path):
    options = "--per_device_train_batch_size 3"
    assert read(tmp_path, f"{options} --num_slots 9").options == read(tmp_path, options).options
    with pytest.raises(InputError, match="num_slotz"):
        read(tmp_path, f"{options} --num_slotz 9")


NAMES = ("own", "data", "args")
FILE = "own, data, args = parser.parse_json_file(sys.argv[1])"


@pytest.mark.parametrize(
    "parses",
    [
        f"if len(sys.argv) == 2:\n        {FILE}\n    else:\n        {PARSES}",
        "own, data, args, rest = parser.parse_args_into_dataclasses(return_remaining_strings=True)",
        "; ".join(f"{name} = parser.parse_args_into_dataclasses()[{place}]" for place, name in enumerate(NAMES)),
        "kinds = [Adapted, Data, TrainingArguments]; parser = HfArgumentParser(kinds)\n    " + PARSES,
    ],
)
def test_it_does_not_matter_how_the_objects_are_taken_apart(parses, tmp_path):
    options = "--use_lora True --per_device_train_batch_size 3"
    assert read(tmp_path, options, parses=parses).options == read(tmp_path, options).options


def test_the_format_of_the_weights_is_not_what_is_loaded(tmp_path):
    """``from_tf``, as transformers' own run_clm.py and all that is made of it have it."""
    options = "--use_lora True --rank 8 --per_device_train_batch_size 3"
    plain = read(tmp_path, options).options
    text = (tmp_path / "mine.py").read_text()
    given = 'from_pretrained(own.name, from_tf=bool(".ckpt" in own.name), offload_folder="here", config=config'
    (tmp_path / "mine.py").write_text(text.replace("from_pretrained(own.name, config=config", given), encoding="utf-8")
    found = read_trainer_config(tmp_path / "run.sh", Asked(num_gpus=1, find_model=find_model))
    assert given in (tmp_path / "mine.py").read_text()
    assert found.options == plain


def test_no_type_is_that_of_the_checkpoint_as_one_that_is_not_said(tmp_path):
    """transformers 5.23 ``from_pretrained``: ``if dtype is None: dtype = "auto"``."""
    options = "--per_device_train_batch_size 3"
    said, half = read(tmp_path, f"{options} --bf16 False").options, read(tmp_path, options).options
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace(", torch_dtype=kind", ""), encoding="utf-8")
    asked = Asked(num_gpus=1, find_model=find_model)
    assert read_trainer_config(tmp_path / "run.sh", asked).options == half
    (tmp_path / "run.sh").write_text(f"python mine.py {OPTIONS} {options} --bf16 False\n", encoding="utf-8")
    assert read_trainer_config(tmp_path / "run.sh", asked).options == said


def test_no_option_of_the_trainers_has_to_be_among_them(tmp_path):
    assert read(tmp_path, "--rank 8").options["micro_batch"] == 8


def test_what_only_the_shell_knows_is_told_by_its_text(tmp_path):
    with pytest.raises(InputError, match=r"per_device_train_batch_size is \$BATCH, which only running"):
        read(tmp_path, "--per_device_train_batch_size $BATCH")
    with pytest.raises(InputError, match=r"lora_r is \$RANK, which only running"):
        read(tmp_path, "--use_lora True --per_device_train_batch_size 2 --rank $RANK")


def test_a_program_that_makes_more_of_them_is_left_to_the_keys_of_the_command(tmp_path):
    options = "--per_device_train_batch_size 2"
    with pytest.raises(InputError, match="rank"):
        read(tmp_path, f"{options} --rank 8", changes="args = changed(args)")


def test_a_program_alone_is_known_where_it_writes_the_trainers_arguments_itself(tmp_path):
    text = PROGRAM.format(parses="own, data = parser.parse_args_into_dataclasses()", changes="pass")
    text = text.replace("(Adapted, Data, TrainingArguments)", "(Adapted, Data)")
    made = text.replace(
        "    config = Auto", "    args = transformers.TrainingArguments(output_dir='out', bf16=True)\n    config = Auto"
    )
    (tmp_path / "mine.py").write_text(made, encoding="utf-8")
    asked = Asked(num_gpus=1, find_model=find_model)
    assert read_trainer_config(tmp_path / "mine.py", asked).options["model"] == "qwen2.5-0.5b"
    (tmp_path / "mine.py").write_text(PROGRAM.format(parses=PARSES, changes="pass"), encoding="utf-8")
    with pytest.raises(InputError, match="give the shell script that holds that"):
        read_trainer_config(tmp_path / "mine.py", asked)


@pytest.mark.sweep
def test_the_trainers_arguments_are_changed_in_the_command_and_the_model_is_not(tmp_path):
    read(tmp_path, "--name qwen2.5-7b --use_lora True --per_device_train_batch_size 16 --model_max_length 4096")
    command = ("check", str(tmp_path / "run.sh"), "--gpu", "a100-sxm4-80gb:1")
    said = call(*command, "--fix", "--write", str(tmp_path / "new.sh")).out
    assert "per_device_train_batch_size 16 -> 2; gradient_accumulation_steps 8" in said
    assert "load_in_4bit" not in said
    assert "fits: " in call("check", str(tmp_path / "new.sh"), *command[2:]).out
