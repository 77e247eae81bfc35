"""Programs that import from files beside them: what those define is read with the program, and only that."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.editing.program_text import edited_program
from vlmplan.other_trainers.programs import program_source, run_of_program
from vlmplan.other_trainers.programs.calls import Program
from vlmplan.other_trainers.read import read_trainer_config

MODEL = "qwen2.5-0.5b"
TRAINS = """trainer = SFTTrainer(
    model=model, args=SFTConfig(output_dir="o", per_device_train_batch_size=BATCH, max_length=512),
    peft_config=adapters(), train_dataset=data)
trainer.train()
"""
HELPERS = f"""from transformers import AutoModelForCausalLM as Loader
from peft import LoraConfig
import settings

def load():
    return Loader.from_pretrained("{MODEL}", dtype="bfloat16")

def adapters():
    return LoraConfig(r=settings.RANK, target_modules="all-linear")

def other(BATCH):
    BATCH = 3
    return Trainer(model=1)
"""


def folder_of(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/")
        path = path.with_suffix(".sh" if path.name == "run" else ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def read(path: Path) -> TrainerConfig:
    return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))


def worth(tmp_path: Path, code: str, **files: str) -> object:
    """What ``f(a=...)`` of a program beside these files is given; None where only running it tells."""
    program = Program(code, source="train.py", folder=folder_of(tmp_path, **files), imports=True)
    (call,) = (call for call in program.calls() if call.name == "f")
    found = call.keywords["a"].worth
    return None if found is None else found.value


def test_a_run_whose_model_and_adapters_are_made_in_other_files_is_read(tmp_path):
    program = "from trl import SFTConfig, SFTTrainer\nfrom helpers import adapters, load\nBATCH = 4\nmodel = load()\n"
    folder = folder_of(tmp_path, train=program + TRAINS, helpers=HELPERS, settings="RANK = 16\nBATCH = 9\n")
    found = read(folder / "train.py")
    assert (found.options["model"], found.options["micro_batch"], found.options["lora_rank"]) == (MODEL, 4, 16)
    assert any("imports from settings.py and helpers.py" in note for note in found.notes)


def test_options_of_a_parser_in_another_file_are_those_of_the_command_that_starts_the_program(tmp_path):
    program = f"""from trl import SFTConfig, SFTTrainer
from transformers import AutoModelForCausalLM
from options import get_args
args = get_args()
BATCH = args.batch
model = AutoModelForCausalLM.from_pretrained("{MODEL}")
{TRAINS.replace("peft_config=adapters(), ", "")}"""
    options = """import argparse
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=2)
    return parser.parse_args()
"""
    folder = folder_of(tmp_path, train=program, options=options, run="python train.py --batch 6\n")
    assert read(folder / "train.py").options["micro_batch"] == 2
    assert read(folder / "run.sh").options["micro_batch"] == 6


def test_a_program_that_tells_all_by_itself_is_read_alone(tmp_path):
    program = f"""from trl import SFTConfig, SFTTrainer
from broken import data
model = "{MODEL}"
BATCH = 2
{TRAINS.replace("peft_config=adapters(), ", "")}"""
    folder = folder_of(tmp_path, train=program, broken="data = Trainer(model=1)\n")
    assert not any("imports from" in note for note in read(folder / "train.py").notes)


@pytest.mark.parametrize(
    ("code", "files", "value"),
    [
        ("from a import N\nf(a=N)", {"a": "N = 2"}, 2),
        ("from a import N as M\nN = 3\nf(a=M)", {"a": "N = 2"}, 2),
        ("from a import *\nf(a=N)", {"a": "N = 2"}, 2),
        ("import a\nf(a=a.N)", {"a": "N = 2"}, 2),
        ("import a as b\nf(a=b.get())", {"a": "N = 2\ndef get():\n    return N\n"}, 2),
        ("from pkg import a\nf(a=a.N)", {"pkg__a": "N = 2"}, 2),
        ("from pkg.a import N\nf(a=N)", {"pkg__a": "from .b import N", "pkg__b": "N = 2"}, 2),
        ("from a import C\nf(a=C().n)", {"a": "N = 2\nclass C:\n    n: int = N\n"}, 2),
        ("from a import T\nf(a=T['n'])", {"a": "T = {'n': 1}\nif __name__ == '__main__':\n    T = {}\n"}, 1),
        ("from a import T\nf(a=T['n'])", {"a": "T = {'n': 1}\nT['n'] = 2"}, None),
        ("from a import get\nN = 3\nf(a=get())", {"a": "N = 2\ndef get():\n    return N\n"}, 2),
        ("from a import get\nf(a=get(5))", {"a": "N = 2\ndef get(N):\n    return N\n"}, 5),
        ("from a import N\nf(a=N)", {"a": "from b import N", "b": "from a import N"}, None),
        ("from a import N\nf(a=N)", {"a": "def broken(:"}, None),
        ("from torch import N\nf(a=N)", {"torch": "N = 2"}, None),
        ("def g(a):\n    f(a=a.N)\nimport a", {"a": "N = 2"}, None),
    ],
)
def test_a_name_of_another_file_is_worth_what_it_is_there(tmp_path, code, files, value):
    assert worth(tmp_path, code, **files) == value


def test_what_another_file_says_is_not_changed_in_the_program(tmp_path):
    program = "from trl import SFTConfig, SFTTrainer\nfrom helpers import adapters, load\nBATCH = 4\nmodel = load()\n"
    folder = folder_of(tmp_path, train=program + TRAINS, helpers=HELPERS, settings="RANK = 16\n")
    code = program_source((folder / "train.py").read_text(), source="train.py", is_notebook=False)
    run = run_of_program(code, source="train.py", folder=folder)
    assert run is not None
    changed = edited_program(run, {"per_device_train_batch_size": 2}, source="train.py")
    assert changed == (program + TRAINS).replace("BATCH = 4", "BATCH = 2")
    for change in ({"lora_r": 8}, {"dtype": "float16"}, {"attn_implementation": "sdpa"}):
        with pytest.raises(InputError, match=r"train\.py imports .* from another file"):
            edited_program(run, change, source="train.py")
