"""Whose class a program's trainer is, and what it is given without a name."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

LOADS = """from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b")
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=3, bf16=True)
"""
OF_TRANSFORMERS = "from transformers import Trainer\n"
TRAINS = "Trainer(model=model, args=arguments, train_dataset=rows{}).train()\n"


@pytest.fixture
def read(tmp_path: Path):
    def of(text: str, **beside: str) -> TrainerConfig:
        for name, code in beside.items():
            (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        return read_trainer_config(tmp_path / "train.py", Asked(num_gpus=1, find_model=find_model))

    return of


def test_arguments_without_names_are_those_of_their_places(read):
    named = read(OF_TRANSFORMERS + LOADS + TRAINS.format(""))
    placed = read(OF_TRANSFORMERS + LOADS + "Trainer(model, arguments, None, rows).train()\n")
    assert placed.options == named.options
    assert placed.options["micro_batch"] == 3


def test_a_preference_trainer_has_its_arguments_in_the_third_place(read):
    text = LOADS.replace(", TrainingArguments", "").replace("TrainingArguments", "DPOConfig")
    config = read(f"from trl import DPOConfig, DPOTrainer\n{text}DPOTrainer(model, None, arguments)\n")
    assert config.options["micro_batch"] == 3


@pytest.mark.parametrize(
    ("imports", "call", "module"),
    [
        ("from pytorch_lightning import Trainer", "Trainer(max_epochs=2)", "pytorch_lightning"),
        ("import pytorch_lightning as pl", "pl.Trainer(max_epochs=2)", "pytorch_lightning"),
        ("from .engine import Trainer", "Trainer(model, arguments)", ".engine"),
    ],
)
def test_a_trainer_of_another_library_is_refused_by_its_module(read, imports, call, module):
    with pytest.raises(InputError, match=rf"trains with Trainer of {module}, which is not read"):
        read(f"{imports}\n{LOADS}{call}\n")


def test_a_class_of_the_program_that_is_called_as_transformers_trainer_is_not_taken_for_it(read):
    own = "class Trainer:\n    def __init__(self, model, size):\n        self.model = model\n"
    with pytest.raises(InputError, match="trains with Trainer, a class of its own"):
        read(f"{LOADS}{own}Trainer(model, size=2)\n")
    with pytest.raises(InputError, match="trains with Trainer"):
        read(f"from engine import Trainer\n{LOADS}Trainer(model, size=2)\n", engine=own)


def test_a_class_beside_the_program_that_is_made_of_transformers_trainer_is_read_as_it(read):
    own = "import transformers\n\nclass Trainer(transformers.Trainer):\n    def log(self, logs):\n        pass\n"
    assert read(f"from engine import Trainer\n{LOADS}{TRAINS.format('')}", engine=own).options["micro_batch"] == 3


def test_an_optimizer_of_the_programs_own_is_refused_and_a_schedule_is_not(read):
    text = OF_TRANSFORMERS + LOADS + "optimizer = AdamW8bit(model.parameters())\n" + TRAINS
    with pytest.raises(InputError, match=r"optimizers of Trainer is \(optimizer, None\)"):
        read(text.format(", optimizers=(optimizer, None)"))
    assert read(text.format(", optimizers=(None, schedule)")).options == read(text.format("")).options


def test_a_model_whose_layers_lie_on_several_gpus_is_no_copy_on_each(tmp_path):
    text = OF_TRANSFORMERS + LOADS.replace('b")', 'b", device_map="auto")') + TRAINS.format("")
    path = tmp_path / "train.py"

    def read(code: str, num_gpus: int | None, num_nodes: int = 1) -> TrainerConfig:
        path.write_text(code, encoding="utf-8")
        asked = Asked(num_gpus=num_gpus, num_nodes=num_nodes, find_model=find_model)
        return read_trainer_config(path, asked)

    plain = read(OF_TRANSFORMERS + LOADS + TRAINS.format(""), 2)
    with pytest.raises(InputError, match='device_map is "auto"; which spreads layers over several GPUs'):
        read(text, 2)
    assert read(text.replace('"auto"', '{"": rank}'), 2).options == plain.options
    assert read(text, 2, num_nodes=2).options == plain.options
    assert any("device_map auto spreads layers" in note for note in read(text, None).notes)
    assert not any("device_map" in note for note in read(text, 1).notes)


def test_what_trl_loads_by_name_is_a_copy_on_each_gpu_whatever_device_map_says(tmp_path):
    text = (
        "from trl import SFTConfig, SFTTrainer\n"
        'arguments = SFTConfig(output_dir="out", model_init_kwargs={"device_map": "auto"})\n'
        'SFTTrainer(model="qwen2.5-0.5b", args=arguments, train_dataset=rows)\n'
    )
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    assert (
        read_trainer_config(tmp_path / "train.py", Asked(num_gpus=2, find_model=find_model)).options["seq_len"] == 1024
    )


MAKES = OF_TRANSFORMERS + LOADS + "trainer = Trainer(model=model, args=arguments, train_dataset=rows)\n"


@pytest.mark.parametrize(
    "given",
    [
        "trainer.args.max_steps = 7\ntrainer.train()",
        "arguments.max_steps = 7\ntrainer.train()",
        "setattr(trainer.args, 'max_steps', 7)\ntrainer.train()\ntrainer.args.max_steps = 9",
        "def fit(trainer):\n    trainer.args.max_steps = 7\n    trainer.train()\nfit(trainer)",
    ],
)
def test_what_arguments_are_given_after_the_trainer_is_made_counts_where_training_reads_it(given, read):
    made = LOADS.replace("bf16=True", "bf16=True, max_steps=7") + TRAINS.format("")
    assert read(MAKES + given).options == read(OF_TRANSFORMERS + made).options
    assert read(MAKES + given).options != read(MAKES + "trainer.train()").options


@pytest.mark.parametrize(
    "given", ["trainer.args.per_device_train_batch_size = 1", "arguments.bf16 = False", "trainer.args.anything += 1"]
)
def test_what_the_trainer_may_have_read_before_it_is_given_is_refused(given, read):
    name = given.split()[0].rpartition(".")[2]
    with pytest.raises(InputError, match=f"{name} is .* after Trainer is made, which may have read it before"):
        read(f"{MAKES}{given}\ntrainer.train()")
    assert read(f"{MAKES}trainer.train()\n{given}").options == read(f"{MAKES}trainer.train()").options


@pytest.mark.parametrize("given", ["max_steps = trainer.state.global_step", "per_device_train_batch_size = 1"])
def test_what_a_function_gives_the_trainer_that_does_not_run_before_it_trains_changes_nothing(given, read):
    stops = f"def stop(trainer):\n    trainer.args.{given}\n"
    text = f"{stops}{MAKES}trainer.train()\n"
    assert read(f"{text}stop(trainer)\n").options == read(f"{text}buttons = [stop]\n").options == read(text).options


def test_what_only_running_the_program_gives_the_trainer_is_refused(read):
    with pytest.raises(InputError, match=r"max_steps is .* which only running the program tells"):
        read(f"{MAKES}if short():\n    trainer.args.max_steps = 7\ntrainer.train()")


OF_ZERO = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{before}
arguments = TrainingArguments(output_dir="out", bf16=True, deepspeed={{"zero_optimization": {{"stage": {stage}}}}})
{after}
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""
PLACES = 'model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", device_map={})'


@pytest.mark.parametrize("placed", ['"auto"', '"cuda"', '{"": 0}', '{"": rank}', "places"])
def test_a_model_that_zero_3_shards_while_it_is_loaded_takes_no_device_map(placed, read):
    loads = "places = {'': rank}\n" * (placed == "places") + PLACES.format(placed)
    with pytest.raises(InputError, match=r"device_map is .*, with which from_pretrained does not load a model under Z"):
        read(OF_ZERO.format(before="", after=loads, stage=3))
    none = PLACES.format("None")
    of_zero_2 = [read(OF_ZERO.format(before="", after=one, stage=2)).options for one in (loads, none)]
    before_arguments = [read(OF_ZERO.format(before=one, after="", stage=3)).options for one in (loads, none)]
    assert of_zero_2[0] == of_zero_2[1]
    assert before_arguments[0] == before_arguments[1] == read(OF_ZERO.format(before="", after=none, stage=3)).options
