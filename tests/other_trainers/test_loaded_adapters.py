"""Runs that go on with an adapter take its sizes from the file that peft wrote beside it."""

import json
from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.recipe.choices import Method

WRITTEN = {"peft_type": "LORA", "r": 24, "lora_alpha": 48, "target_modules": ["q_proj", "o_proj"], "bias": "none"}
PEFTS_OWN = {"lora_rank": 24, "lora_alpha": 48, "lora_targets": "q_proj,o_proj"}
FILES = {
    "a.yaml": "model_name_or_path: qwen2.5-0.5b\nadapter_name_or_path: first\ndo_train: true\nlora_rank: 4\n"
    "cutoff_len: 64\nbf16: true\nfinetuning_type: lora\n",
    "b.yaml": "base_model: qwen2.5-0.5b\nadapter: lora\nlora_model_dir: first\nlora_r: 4\nlora_alpha: 8\n"
    "lora_target_linear: true\nsequence_len: 64\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\nbf16: true\n"
    "datasets: [{path: chats.jsonl}]\nattn_implementation: flash_attention_2\n",
    "c.sh": "swift sft --model qwen2.5-0.5b --adapters first --lora_rank 4 --max_length 64 --dataset chats.jsonl "
    "--torch_dtype bfloat16\n",
}
PROGRAM = """from peft import PeftModel, LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
start = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", dtype="bfloat16")
model = PeftModel.from_pretrained(start, "first", is_trainable=True)
DPOTrainer(model=model, args=DPOConfig(output_dir="out", bf16=True, max_length=64)).train()
"""


def read(path: Path, text: str, **asked: Method) -> TrainerConfig:
    path.write_text(text, encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model, **asked))


def write_adapter(folder: Path, **changes: object) -> None:
    (folder / "first").mkdir()
    (folder / "first" / "adapter_config.json").write_text(json.dumps({**WRITTEN, **changes}), encoding="utf-8")


def sizes(config: TrainerConfig) -> dict[str, object]:
    return {name: config.options[name] for name in PEFTS_OWN}


@pytest.mark.parametrize("name", FILES)
def test_the_adapters_own_file_goes_before_the_keys_of_new_adapters(tmp_path, name):
    written = read(tmp_path / name, FILES[name])
    assert written.options["lora_rank"] == 4
    assert any("not on this machine" in note and "adapter_config.json" in note for note in written.notes)
    write_adapter(tmp_path)
    assert sizes(read(tmp_path / name, FILES[name])) == PEFTS_OWN


@pytest.mark.parametrize("name", FILES)
def test_a_pattern_of_modules_stays_one(tmp_path, name):
    write_adapter(tmp_path, target_modules=r".*layers\.[01]\.mlp\.up_proj")
    assert read(tmp_path / name, FILES[name]).options["lora_targets"] == r"regex:.*layers\.[01]\.mlp\.up_proj"


def test_what_a_file_of_peft_has_beside_is_refused_by_its_name(tmp_path):
    write_adapter(tmp_path, rank_pattern={"q_proj": 2})
    with pytest.raises(InputError, match="rank_pattern"):
        read(tmp_path / "a.yaml", FILES["a.yaml"])


def test_llama_factory_merges_an_adapter_before_it_makes_a_new_one(tmp_path):
    write_adapter(tmp_path)
    text = FILES["a.yaml"] + "create_new_adapter: true\n"
    assert read(tmp_path / "a.yaml", text).options["lora_rank"] == 4
    assert read(tmp_path / "a.yaml", text + "quantization_bit: 4\n").options["lora_rank"] == 24


def test_trl_makes_new_adapters_of_preferences_whatever_axolotl_says(tmp_path):
    write_adapter(tmp_path)
    found = read(tmp_path / "b.yaml", FILES["b.yaml"] + "rl: dpo\n")
    assert found.options["lora_rank"] == 4
    assert any("lora_model_dir" in note for note in found.notes)


def test_a_program_that_loads_an_adapter_trains_it_alone(tmp_path):
    write_adapter(tmp_path)
    found = read(tmp_path / "train.py", PROGRAM)
    assert found.options["method"] == "lora"
    assert sizes(found) == PEFTS_OWN
    assert any("for the reference" in note for note in found.notes)


def test_an_adapter_that_is_not_here_has_to_be_said(tmp_path):
    with pytest.raises(InputError, match=r"first.*--lora-rank"):
        read(tmp_path / "train.py", PROGRAM)
    assert read(tmp_path / "train.py", PROGRAM, method=Method.LORA).options["method"] == "lora"


def test_an_adapter_that_is_loaded_frozen_trains_nothing(tmp_path):
    write_adapter(tmp_path)
    with pytest.raises(InputError, match="is_trainable=True"):
        read(tmp_path / "train.py", PROGRAM.replace(", is_trainable=True", ""))


HANDED_ON = """from peft import PeftModel
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

def load():
    start = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", dtype="bfloat16")
    model = PeftModel.from_pretrained(start, "first")
    for name, weight in model.named_parameters():
        if "lora" in name:
            weight.requires_grad = True
    return model, 1

model, _ = load()
SFTTrainer(model=model, args=SFTConfig(output_dir="out", bf16=True, max_length=64)).train()
"""


def test_an_adapter_that_a_function_hands_on_is_known_by_what_is_trained(tmp_path):
    write_adapter(tmp_path)
    assert sizes(read(tmp_path / "train.py", HANDED_ON)) == PEFTS_OWN


def test_an_adapter_that_is_merged_leaves_a_whole_model(tmp_path):
    text = PROGRAM.replace(", is_trainable=True)", ")\nmodel = model.merge_and_unload()")
    assert read(tmp_path / "train.py", text).options["method"] == "full"
    with_new = text.replace("args=", 'peft_config=LoraConfig(r=6, target_modules=["q_proj", "v_proj"]), args=')
    assert read(tmp_path / "train.py", with_new).options["lora_rank"] == 6


def test_a_program_that_leaves_its_adapters_off_says_so(tmp_path):
    text = PROGRAM.replace("PeftModel.from_pretrained(start, ", "start if True else (start, ").replace(
        'start, "first", is_trainable=True', "0, LoraConfig(r=4)"
    )
    assert any("adapters" in note for note in read(tmp_path / "train.py", text).notes)
