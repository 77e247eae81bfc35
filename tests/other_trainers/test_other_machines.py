"""Files that were written on another machine: models and files by paths that are not here."""

import json
from pathlib import Path

import pytest

from vlmplan.errors import InputError, UnavailableError
from vlmplan.models import alias_of_absent

SWIFT = "swift sft --model {model} --dataset d.jsonl --torch_dtype bfloat16"
TRAINER = "torchrun train.py --model_name_or_path {model} --per_device_train_batch_size 2 --bf16 True"


@pytest.mark.parametrize("script", [SWIFT, TRAINER])
def test_a_model_in_a_folder_that_is_not_here_is_taken_by_the_folders_name_and_told(read, script: str):
    config = read(script.format(model="/data/models/Qwen2.5-VL-3B-Instruct"))
    named = read(script.format(model="Qwen/Qwen2.5-VL-3B-Instruct"))
    same = {**config.options, "model": ""}
    assert same == {**named.options, "model": ""}
    assert config.options["model"] == "qwen2.5-vl-3b"
    assert "taken for qwen2.5-vl-3b by its name; --model names another" in config.notes[0]


def test_a_folder_that_is_here_or_has_no_models_name_is_taken_for_no_other(read, tmp_path: Path):
    folder = tmp_path / "Qwen2.5-VL-3B-Instruct"
    folder.mkdir()
    assert alias_of_absent(str(folder)) is None
    with pytest.raises(UnavailableError, match="has no config"):
        read(SWIFT.format(model=folder))
    with pytest.raises(
        UnavailableError, match=r"checkpoint-300 does not exist.*--model names one in place of the file"
    ):
        read(SWIFT.format(model="/out/checkpoint-300"))


def test_a_file_by_a_path_of_another_machine_is_found_by_its_end_and_told(read, tmp_path: Path):
    place = tmp_path / "scripts" / "zero.json"
    place.parent.mkdir()
    for stage, path in ((2, place), (3, tmp_path / "zero.json")):
        path.write_text(json.dumps({"zero_optimization": {"stage": stage}}), encoding="utf-8")
    script = TRAINER.format(model="qwen2.5-0.5b") + " --deepspeed "
    config = read(script + "/mnt/ours/scripts/zero.json")
    assert config.ds_config is not None
    assert config.ds_config.zero_stage == 2  # the longest end that is there
    assert f"which is not on this machine: {place} is taken" in " ".join(config.notes)
    for absent in ("/mnt/ours/other.json", "other/zero.json"):
        with pytest.raises(InputError, match="no file from here"):
            read(script + absent)


def test_what_only_the_shell_tells_is_refused_where_it_matters_alone(read):
    script = SWIFT.format(model="qwen2.5-0.5b") + " --output_dir out/$1 --run_name $RUN --seed $SEED"
    config = read(script)
    assert {"run_name", "seed"} <= set(config.idle)
    assert config.output_dir == "out/$1"
    with pytest.raises(InputError, match=r"lora_rank is \$RANK, which only running the program tells"):
        read(f"{script} --lora_rank $RANK")
    unknown = SWIFT.format(model="$MODEL")
    assert read(unknown, model="qwen2.5-0.5b").options["micro_batch"] == 1
    with pytest.raises(InputError, match=r"model is \$MODEL, which only running the program tells"):
        read(unknown)


@pytest.mark.parametrize("starts", ["torchrun --nproc_per_node 2 $(which swift)", "torchrun `command -v swift`"])
def test_a_trainers_program_may_be_started_by_a_launcher(read, starts: str):
    command = SWIFT.format(model="qwen2.5-0.5b")
    assert read(command.replace("swift", starts, 1)).options == read(command).options
