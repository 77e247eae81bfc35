"""Which of a program's models is trained, and how that one is loaded."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

IMPORTS = """import os
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
BASE = "qwen2.5-0.5b"
BITS = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bfloat16")
"""
TRAINS = """SFTTrainer(model=model, args=SFTConfig(output_dir="out"), train_dataset=rows,
        peft_config=LoraConfig(r=8, target_modules="all-linear")).train()
"""


@pytest.fixture
def read(tmp_path: Path):
    def of(text: str) -> TrainerConfig:
        (tmp_path / "train.py").write_text(IMPORTS + text, encoding="utf-8")
        return read_trainer_config(tmp_path / "train.py", Asked(num_gpus=1, find_model=find_model))

    return of


def test_a_function_that_merges_afterwards_loads_nothing_that_is_trained(read):
    text = f"""
def load():
    model = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=BITS)
    return model, "tokenizer"

def merge(folder):
    plain = AutoModelForCausalLM.from_pretrained("qwen3-4b", dtype="float16")
    PeftModel.from_pretrained(plain, folder).merge_and_unload()

def main():
    model, tokenizer = load()
    {TRAINS}
    merge("out")

main()
"""
    config = read(text)
    assert (config.options["model"], config.options["method"]) == ("qwen2.5-0.5b", "qlora")
    with pytest.raises(InputError, match="loads its model in 2 places, with another pretrained_model_name_or_path"):
        read(text.replace("    model, tokenizer = load()\n", '    merge("old")\n    model, tokenizer = load()\n'))


def test_methods_that_nothing_calls_before_are_left(read):
    config = read(f"""
class Tuner:
    def __init__(self):
        self.load()

    def load(self):
        self.model = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=BITS)

    def compare(self):
        return AutoModelForCausalLM.from_pretrained("qwen3-4b")

    def train(self):
        model = self.model
        {TRAINS}

Tuner().train()
""")
    assert (config.options["model"], config.options["method"]) == ("qwen2.5-0.5b", "qlora")


def test_adapters_of_a_function_that_runs_afterwards_are_not_those_that_are_trained(read):
    config = read("""
def adapt(model):
    return get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))

def compare(model):
    return get_peft_model(model, LoraConfig(r=64, target_modules=["q_proj"]))

def main():
    model = adapt(AutoModelForCausalLM.from_pretrained(BASE))
    SFTTrainer(model=model, args=SFTConfig(output_dir="out"), train_dataset=rows).train()
    compare(model)

main()
""")
    assert (config.options["lora_rank"], config.options["lora_targets"]) == (8, "all-linear")


def test_of_two_in_one_function_the_last_stays(read):
    first = 'model = AutoModelForCausalLM.from_pretrained("qwen3-4b")\n'
    config = read(f"{first}model = prepared(AutoModelForCausalLM.from_pretrained(BASE))\n{TRAINS}")
    assert config.options["model"] == "qwen2.5-0.5b"


def test_what_a_failure_leads_to_is_not_what_is_planned(read):
    config = read(f"""
try:
    model = AutoModelForCausalLM.from_pretrained(BASE, attn_implementation="flash_attention_2")
except ImportError:
    model = AutoModelForCausalLM.from_pretrained(BASE, attn_implementation="eager")
{TRAINS}""")
    assert config.options["attention"] == "flash_attention_2"


def test_models_between_which_only_running_decides_are_refused(read):
    text = f"""
if os.path.exists("/packed"):
    model = AutoModelForCausalLM.from_pretrained(BASE, quantization_config=BITS)
else:
    model = AutoModelForCausalLM.from_pretrained(BASE)
{TRAINS}"""
    with pytest.raises(InputError, match="loads its model in 2 places, with another quantization_config each"):
        read(text)
    assert read(text.replace(", quantization_config=BITS", ', revision="a"')).options["method"] == "lora"


def test_torch_compile_is_refused_and_other_rows_of_the_embedding_are_told(read):
    text = f"import re\nimport torch\nre.compile('a')\nmodel = AutoModelForCausalLM.from_pretrained(BASE)\n{TRAINS}"
    plain = read(text)
    with pytest.raises(InputError, match=r"torch\.compile is not planned; leave it out"):
        read(text.replace(")\nSFT", ")\nmodel = torch.compile(model)\nSFT"))
    resized = read(text.replace(")\nSFT", ")\nmodel.resize_token_embeddings(len(tokenizer))\nSFT"))
    assert resized.options == plain.options
    assert [note for note in resized.notes if note not in plain.notes] == [
        "resize_token_embeddings: embedding and head are planned with the checkpoint's rows; what it adds or takes "
        "away is not counted"
    ]
