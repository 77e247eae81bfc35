"""The language model alone of a vision-language model, as ``AutoModelForCausalLM`` loads it of some."""

import json
from pathlib import Path
from typing import Any

import pytest

from vlmplan.errors import InputError
from vlmplan.model_types.language_parts import CLASSES, LANGUAGE_TYPES, SUFFIX
from vlmplan.models import find_model, takes_images
from vlmplan.models.packaged import PACKAGED_MODELS
from vlmplan.models.tree import model_tree
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.writing.hugging_face import model_name

PROGRAM = """
from transformers import {auto}, Trainer, TrainingArguments
model = {auto}.from_pretrained("{name}", dtype="bfloat16")
args = TrainingArguments(output_dir="o", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args).train()
"""
PARSED = """
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config()
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
trainer = SFTTrainer(model=model, args=training_args, peft_config=get_peft_config(model_args))
trainer.train()
"""


@pytest.fixture
def read(tmp_path: Path):
    def config(auto: str, name: str, model: str | None = None) -> TrainerConfig:
        path = tmp_path / "train.py"
        path.write_text(PROGRAM.format(auto=auto, name=name))
        return read_trainer_config(path, Asked(model=model, num_gpus=1, find_model=find_model))

    return config


def test_the_classes_are_those_of_transformers():
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    loaded = {name: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(name) for name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    parts: dict[str, Any] = {name: CONFIG_MAPPING[name].sub_configs for name in loaded if name in CONFIG_MAPPING}
    sections = {name: part.get("text_config") for name, part in parts.items()}
    alone = {
        name: (class_name, sections[name].model_type)
        for name, class_name in loaded.items()
        if class_name is not None and sections.get(name) is getattr(transformers, class_name).config_class
    }
    assert {name: (CLASSES[name], LANGUAGE_TYPES[name]) for name in CLASSES} == alone


@pytest.mark.parametrize("alias", ["qwen3.5-4b", "qwen3.5-35b-a3b", "llama-4-scout", "qwen3.8-flash-next"])
def test_it_has_the_parameters_of_the_class_that_transformers_makes(alias: str):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(PACKAGED_MODELS / alias))
    part, whole = find_model(alias + SUFFIX), find_model(alias)
    planned, of_whole = (sum(one.parameter.numel for one in model_tree(files).parameters()) for files in (part, whole))
    assert planned == sum(parameter.numel() for parameter in made.parameters()) < of_whole
    assert not takes_images(part)


def test_a_program_that_loads_the_language_model_alone_is_planned_so(read):
    assert read("AutoModelForCausalLM", "Qwen/Qwen3.5-4B").options["model"] == "Qwen/Qwen3.5-4B:text"
    assert read("Qwen3_5ForCausalLM", "qwen3.5-4b").options["model"] == "qwen3.5-4b:text"
    assert read("AutoModelForCausalLM", "/absent/Qwen3.5-4B").options["model"] == "qwen3.5-4b:text"
    assert read("AutoModelForImageTextToText", "qwen3.5-4b").options["model"] == "qwen3.5-4b"
    assert read("AutoModelForCausalLM", "gemma-3-4b").options["model"] == "gemma-3-4b"
    notes = read("AutoModelForCausalLM", "qwen3.5-4b", model="qwen3.5-9b").notes
    assert any("--model qwen3.5-9b:text plans that" in note for note in notes)


@pytest.mark.parametrize("program", ["sft.py", "train.py"])
def test_a_command_that_starts_such_a_program_too(program: str, tmp_path: Path):
    (tmp_path / program).write_text(PARSED)
    script = tmp_path / "run.sh"
    script.write_text(f"accelerate launch {program} --model_name_or_path qwen3.5-4b --bf16 true --max_length 512\n")
    found = read_trainer_config(script, Asked(num_gpus=1, find_model=find_model))
    assert found.options["model"] == "qwen3.5-4b:text"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "qwen2.5-vl-7b",
            r"qwen2.5-vl-7b:text: transformers has no class that loads the language model of",
        ),
        ("llama-3.2-11b-vision", "MllamaForCausalLM of llama-3.2-11b-vision, its language model alone: vlmplan has no"),
    ],
)
def test_models_without_such_a_class_are_refused(name: str, sentence: str):
    with pytest.raises(InputError, match=sentence):
        find_model(name + SUFFIX)


def test_a_folder_called_so_is_a_folder(tmp_path: Path):
    folder = tmp_path / "mine:text"
    folder.mkdir()
    (folder / "config.json").write_text((PACKAGED_MODELS / "qwen3.5-4b" / "config.json").read_text())
    assert find_model(str(folder)).model_type == json.loads((folder / "config.json").read_text())["model_type"]


def test_no_file_of_another_trainer_names_it():
    with pytest.raises(InputError, match="is the language model alone of a checkpoint"):
        model_name(find_model("qwen3.5-4b:text"))
