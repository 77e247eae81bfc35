"""Files are loaded as their trainers load them: a key that is given twice, an option without its value."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.editing.objects import TextFormat, edited
from vlmplan.other_trainers.editing.yaml_text import object_in_yaml
from vlmplan.other_trainers.read import read_trainer_config

MODEL = "qwen2.5-0.5b"
AXOLOTL = f"""base_model: {MODEL}
micro_batch_size: 1
gradient_accumulation_steps: 1
sequence_len: 512
bf16: true
flash_attention: true
"""
LLAMA_FACTORY = f"model_name_or_path: {MODEL}\nstage: sft\nfinetuning_type: lora\ncutoff_len: 512\nbf16: true\n"
TRL = f"model_name_or_path: {MODEL}\ndataset_name: d\nuse_peft: true\nper_device_train_batch_size: 1\n"


def read(folder: Path, text: str, name: str = "run.yaml", model: str | None = None) -> TrainerConfig:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=1, model=model, find_model=find_model))


@pytest.mark.parametrize(
    ("text", "again", "option"),
    [
        (AXOLOTL, "micro_batch_size: 4", "micro_batch"),
        (TRL, "per_device_train_batch_size: 4", "micro_batch"),
    ],
    ids=["axolotl", "TRL"],
)
def test_the_last_of_a_key_that_is_given_twice_is_taken_and_said_where_pyyaml_loads(tmp_path, text, again, option):
    once, twice = read(tmp_path, text), read(tmp_path, f"{text}{again}\n")
    assert (once.options[option], twice.options[option]) == (1, 4)
    key = again.partition(":")[0]
    assert any(f"gives {key} more than once: the last value is taken" in note for note in twice.notes)


def test_a_key_that_is_given_twice_is_refused_where_omegaconf_loads(tmp_path):
    with pytest.raises(InputError, match=r"says cutoff_len twice.*OmegaConf"):
        read(tmp_path, f"{LLAMA_FACTORY}cutoff_len: 1024\n")


def test_a_key_that_is_given_twice_is_not_changed_as_either_place_could_be_meant():
    text = "micro: 1\nmicro: 2\n"
    with pytest.raises(InputError, match="gives micro 2 times; keep one"):
        edited(
            text,
            object_in_yaml(text, source="x.yaml"),
            {"micro": 4},
            TextFormat(source="x.yaml", is_json=False, near={}),
        )


def test_a_model_option_without_its_value_is_asked_for(tmp_path):
    script = "swift sft --model --train_type lora --dataset d --max_length 512\n"
    with pytest.raises(InputError, match="model has no value; the name of a model is needed, or --model"):
        read(tmp_path, script, "run.sh")
    assert read(tmp_path, script, "run.sh", model=MODEL).options["method"] == "lora"
