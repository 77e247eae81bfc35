"""Programs whose values stand in a file that they load, in options of their own, or in the command that starts them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from vlmplan.cli.check import check
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.notes import Caveat
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config, read_opened
from vlmplan.other_trainers.read import read_trainer_config

PROGRAM = """import argparse, yaml
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

def load_settings(path):
    with open(path) as file:
        settings = yaml.safe_load(file)
    return settings

def build(settings, rank):
    adapters = LoraConfig(r=rank, target_modules=settings["lora"].get("modules", "all-linear"))
    arguments = SFTConfig(
        output_dir="out",
        max_length=int(settings["training"]["length"]),
        per_device_train_batch_size=settings["training"]["batch"],  # of each GPU
        gradient_checkpointing=settings["training"].get("checkpoints", False),
        bf16=True,
    )
    return SFTTrainer(model=settings["model"], args=arguments, peft_config=adapters)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", default="settings.yaml")
    parser.add_argument("--rank", type=int, default=4)
    args = parser.parse_args()
    build(load_settings(args.settings), args.rank).train()

if __name__ == "__main__":
    main()
"""
SETTINGS = "model: qwen2.5-0.5b\nlora: {}\ntraining:\n  length: 256\n  batch: 2\n"
WRITTEN = {"model": "qwen2.5-0.5b", "seq_len": 256, "micro_batch": 2, "lora_rank": 4, "activation_checkpointing": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "settings.yaml").write_text(SETTINGS, encoding="utf-8")
    return tmp_path


def read(path: Path, text: str | None = None) -> TrainerConfig:
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=1, find_model=find_model))


def test_values_of_a_file_that_a_program_loads_are_its_own(folder):
    config = read(folder / "train.py")
    assert {key: config.options[key] for key in WRITTEN} == WRITTEN
    said = " ".join(map(str, config.notes))
    assert said.count("its values are taken from there") == 1
    assert f"loads {folder / 'settings.yaml'}: its values are taken from there" in said
    assert "options of the program are taken at their defaults: rank" in said


def test_targets_that_only_running_tells_are_one_mistake(folder):
    text = PROGRAM.replace('settings["lora"].get("modules", "all-linear")', "chosen(settings)")
    with pytest.raises(InputError) as caught:
        read(folder / "train.py", text)
    said = str(caught.value)
    assert "lora_target_modules is chosen(settings), which only running the program tells" in said
    assert "adapts nothing" not in said
    assert "mistakes" not in said


def test_a_function_that_loads_several_files_has_the_values_of_each(folder):
    text = PROGRAM.replace("build(load_settings(args.settings), args.rank)", "build(first, second['rank'])").replace(
        "    args = parser.parse_args()\n",
        "    args = parser.parse_args()\n    first = load_settings(str(Path('configs') / args.settings))\n"
        "    second = load_settings(path='configs/other.yaml')\n",
    )
    (folder / "configs").mkdir()
    (folder / "settings.yaml").rename(folder / "configs" / "settings.yaml")
    (folder / "configs" / "other.yaml").write_text("rank: 12\n", encoding="utf-8")
    config = read(folder / "train.py", text)
    assert {key: config.options[key] for key in WRITTEN} == WRITTEN | {"lora_rank": 12}
    (folder / "configs" / "other.yaml").unlink()
    with pytest.raises(InputError, match="lora_r is rank, which only running the program tells"):
        read(folder / "train.py", text)


def test_a_file_that_is_not_here_leaves_its_values_to_be_written(folder):
    (folder / "settings.yaml").unlink()
    with pytest.raises(InputError, match=r"max_length is int\( ?settings\[.*only running the program tells"):
        read(folder / "train.py")


def test_no_file_is_opened_for_a_program_that_came_alone(folder):
    opened = open_trainer_config(folder / "train.py", PROGRAM, is_alone=True)
    with pytest.raises(InputError, match="only running the program tells"):
        read_opened(opened, Asked(num_gpus=1, find_model=find_model))


@pytest.mark.parametrize(
    "starts", ["python train.py", "accelerate launch --num_processes 1 train.py", "uv run train.py"]
)
def test_options_of_the_command_go_before_those_of_the_program(starts, folder):
    (folder / "other.yaml").write_text(SETTINGS.replace("256", "512"), encoding="utf-8")
    script = f"#!/bin/bash\nRANK=8\npython prepare.py --rank 2\n{starts} --settings other.yaml --rank $RANK\n"
    if starts.startswith("uv"):
        script = script.replace("uv run", "uv run python")
    config = read(folder / "run.sh", script)
    assert {key: config.options[key] for key in WRITTEN} == WRITTEN | {"seq_len": 512, "lora_rank": 8}
    assert "train.py is read with the options that" in " ".join(map(str, config.notes))
    assert "are taken at their defaults" not in " ".join(map(str, config.notes))


def test_an_option_that_has_to_be_given_is_told(folder):
    needed = PROGRAM.replace('"--settings", default="settings.yaml"', '"--settings", required=True')
    with pytest.raises(InputError, match="; --settings may say it: a shell script that holds the command is read"):
        read(folder / "train.py", needed)
    assert read(folder / "run.sh", "#!/bin/bash\npython train.py --settings settings.yaml\n").options["seq_len"] == 256


def test_a_trainer_that_changes_no_step_is_planned_as_the_one_that_it_is_made_of(folder):
    named = "class Reporting(SFTTrainer):\n    def log(self, logs):\n        print(logs)\n\n"
    text = PROGRAM.replace("def load_settings", f"{named}def load_settings").replace(
        "return SFTTrainer(", "return Reporting("
    )
    config = read(folder / "train.py", text)
    assert {key: config.options[key] for key in WRITTEN} == WRITTEN
    assert "Reporting is planned as SFTTrainer, of which it changes no step" in config.notes
    with pytest.raises(InputError, match=r"trains with Reporting, .* another training_step: what that computes is not"):
        read(folder / "train.py", text.replace("def log(", "def training_step("))


def test_a_loss_of_the_programs_own_is_said_not_to_be_known(folder):
    forward = "self.{}(**inputs).logits.sum()"
    named = "class Weighted(SFTTrainer):\n    def compute_loss(self, model, inputs):\n        return {}\n\n"
    text = PROGRAM.replace("return SFTTrainer(", "return Weighted(")
    once = text.replace("def load_settings", named.format(forward.format("model")) + "def load_settings")
    config = read(folder / "train.py", once)
    assert {key: config.options[key] for key in WRITTEN} == WRITTEN
    assert any(isinstance(note, Caveat) and "Weighted computes a loss of its own" in note for note in config.notes)
    twice = f"{forward.format('model')} - {forward.format('teacher')}"
    with pytest.raises(InputError, match=r"trains with Weighted, .* another compute_loss"):
        read(folder / "train.py", text.replace("def load_settings", named.format(twice) + "def load_settings"))


def test_words_of_the_command_say_which_file_a_program_loads(folder):
    text = PROGRAM.replace("args.settings)", "sys.argv[1])").replace("args.rank)", "4)")
    with pytest.raises(InputError, match=r"sys.argv may say it: a shell script that holds the command is read"):
        read(folder / "train.py", text)
    config = read(folder / "run.sh", "#!/bin/bash\npython train.py settings.yaml\n")
    assert {key: config.options[key] for key in WRITTEN} == WRITTEN
    usual = text.replace("sys.argv[1]", 'sys.argv[1] if len(sys.argv) > 1 else "settings.yaml"')
    assert read(folder / "train.py", usual).options["seq_len"] == 256


def test_lists_that_are_made_of_text_are_read(folder):
    text = PROGRAM.replace(
        'settings["lora"].get("modules", "all-linear")',
        '[one.strip() for one in "q_proj, v_proj,".split(",") if one.strip()]',
    )
    assert read(folder / "train.py", text).options["lora_targets"] == "q_proj,v_proj"


def test_properties_of_a_class_of_settings_are_what_they_return(folder):
    named = (
        "class Own:\n    base = 3\n    @property\n    def rank(self):\n        return self.base * 2\nown = Own()\n\n"
    )
    text = PROGRAM.replace("def load_settings", f"{named}def load_settings").replace("r=rank", "r=own.rank")
    assert read(folder / "train.py", text).options["lora_rank"] == 6


def test_what_only_the_shell_knows_of_the_command_is_refused_by_its_key(folder):
    with pytest.raises(InputError, match="lora_r is rank, which only running the program tells"):
        read(folder / "run.sh", "#!/bin/bash\npython train.py --rank $RANK\n")


def test_a_model_that_an_option_has_to_name_is_named_by_the_user(folder):
    text = (
        PROGRAM.replace('settings["model"]', "args.model")
        .replace(
            "build(load_settings(args.settings), args.rank)", "build(load_settings(args.settings), args.rank, args)"
        )
        .replace("(settings, rank)", "(settings, rank, args)")
        .replace("    args = parser", '    parser.add_argument("--model", required=True)\n    args = parser')
    )
    with pytest.raises(InputError, match=r"model_name_or_path is args.model, .* or name the model with --model"):
        read(folder / "train.py", text)
    asked = Asked(num_gpus=1, find_model=find_model, model="qwen2.5-0.5b")
    assert read_trainer_config(folder / "train.py", asked).options["seq_len"] == 256


def fixed(path: Path, target: Path, *words: str) -> str:
    command = [str(path), "--gpu", "rtx-4090:1", "--fix", "--write", str(target), *words]
    result = CliRunner().invoke(check, command)
    return f"{result.output}{result.exception or ''}"


def test_a_change_is_written_into_the_program_and_its_comments_stay(folder):
    (folder / "settings.yaml").write_text(SETTINGS.replace("256", "4096").replace("batch: 2", "batch: 32"))
    said = fixed(folder / "train.py", folder / "new.py")
    changed = (folder / "new.py").read_text(encoding="utf-8")
    assert changed != PROGRAM, said
    assert "# of each GPU" in changed
    assert CliRunner().invoke(check, [str(folder / "new.py"), "--gpu", "rtx-4090:1"]).exit_code == 0


def test_a_script_that_starts_the_program_is_not_changed_in_its_place(folder):
    (folder / "run.sh").write_text("#!/bin/bash\npython train.py --rank 8\n", encoding="utf-8")
    said = fixed(folder / "run.sh", folder / "new.sh", "--seq-len", "32768")
    assert "starts train.py, in which what it trains is written: change that program" in " ".join(said.split())
    assert not (folder / "new.sh").exists()


def test_evaluations_that_depend_on_samples_are_planned_as_where_there_are_some(folder):
    evaluated = (
        'eval_strategy="steps" if held_out is not None else "no", eval_steps=50 if held_out else None, bf16=True,'
    )
    text = PROGRAM.replace("bf16=True,", evaluated)
    config = read(folder / "train.py", text)
    assert config.options["eval_every"] == 50
    assert any("held_out is not None: decided as where there are samples to evaluate" in note for note in config.notes)
    with pytest.raises(InputError, match=r"eval_strategy is .* which only running the program tells"):
        read(folder / "train.py", text.replace("held_out is not None", "check(held_out)"))


def test_when_checkpoints_are_written_does_not_have_to_be_known(folder):
    open_ends = PROGRAM.replace("bf16=True,", "save_steps=every(), save_total_limit=keep(), bf16=True,")
    config = read(folder / "train.py", open_ends)
    usual = read(folder / "train.py", PROGRAM)
    assert (config.options, config.saving) == (usual.options, usual.saving)
    assert any(note.startswith("save_steps and save_total_limit: only running") for note in config.notes)


CHOOSES = """from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
bits, adapters = None, None
if wants(4):
    bits = BitsAndBytesConfig(load_in_4bit=True)
    adapters = LoraConfig(r=6, target_modules=["q_proj", "v_proj"])
model = AutoModelForCausalLM.from_pretrained("qwen2.5-0.5b", quantization_config=bits, dtype="bfloat16")
SFTTrainer(model=model, args=SFTConfig(output_dir="out", bf16=True, max_length=64), peft_config=adapters).train()
"""


def test_an_object_that_only_running_chooses_is_taken_for_the_only_one_and_that_is_said(tmp_path):
    config = read(tmp_path / "train.py", CHOOSES)
    assert (config.options["method"], config.options["lora_rank"]) == ("qlora", 6)
    assert "bits is taken for the only BitsAndBytesConfig that the program makes" in config.notes
    assert "adapters is taken for the only LoraConfig that the program makes" in config.notes
    two = CHOOSES.replace("model = Auto", "else:\n    bits = BitsAndBytesConfig(load_in_8bit=True)\nmodel = Auto")
    with pytest.raises(InputError, match="quantization_config is bits; BitsAndBytesConfig is read"):
        read(tmp_path / "train.py", two)
