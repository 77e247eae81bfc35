"""What programs choose by the GPU and by the model that they have: types, classes and tables."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config


def _read(folder: Path, text: str) -> TrainerConfig:
    path = folder / "train.py"
    path.write_text(text, encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))


CHOOSES = """import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

class Config:
    adapters = {"r": 6, "lora_alpha": 12}

config = Config()
if CONDITION:
    dtype = torch.bfloat16
else:
    dtype = torch.float16
model_id = "qwen2.5-0.5b"
if model_id.startswith("qwen2.5-vl"):
    model_class = AutoModelForImageTextToText
else:
    model_class = AutoModelForCausalLM
options = dict(attn_implementation="eager", torch_dtype=dtype, device_map=device())
options["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=options["torch_dtype"])
model = model_class.from_pretrained(model_id, return_dict=True, **options)
args = SFTConfig(output_dir="out", max_length=256, bf16=dtype == torch.bfloat16, fp16=dtype == torch.float16)
adapters = LoraConfig(**config.adapters, target_modules=["q_proj", "v_proj"])
SFTTrainer(model, args=args, peft_config=adapters).train()
"""


@pytest.mark.parametrize(
    "condition",
    [
        "torch.cuda.get_device_capability()[0] >= 8",
        "torch.cuda.get_device_capability() >= (8, 0)",
        "not torch.cuda.get_device_capability(0)[0] < 8",
        "torch.cuda.get_device_capability()[0] > 7",
    ],
)
def test_a_gpu_that_is_asked_for_its_capability_computes_in_bf16_and_that_is_said(condition, tmp_path):
    config = _read(tmp_path, CHOOSES.replace("CONDITION", condition))
    wanted = {"precision": "bf16", "method": "qlora", "attention": "eager", "lora_rank": 6, "lora_alpha": 12}
    assert config.options | wanted == config.options
    said = f"{condition} is taken as on a GPU that computes in bf16; "
    assert sum(note.startswith(said) for note in config.notes) == 1


def test_versions_of_a_capability_by_name_are_known_and_others_are_not(tmp_path):
    text = CHOOSES.replace("config = Config()", "major, minor = torch.cuda.get_device_capability()\nconfig = Config()")
    assert _read(tmp_path, text.replace("CONDITION", "major >= 8")).options["precision"] == "bf16"
    with pytest.raises(InputError, match="only running the program tells"):
        _read(tmp_path, text.replace("CONDITION", "major >= 9"))
