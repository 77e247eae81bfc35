"""Scripts of one's own around Hugging Face's Trainer: which of their own keys are taken, and which refused."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.recipe.choices import Method

MODEL = "qwen2.5-0.5b"
SCRIPT = (
    f"torchrun --nproc_per_node 8 finetune.py --model_name_or_path {MODEL} --per_device_train_batch_size 2 --bf16 1 "
)
ADAPTERS = "--lora_r 64 --lora_alpha 16 --lora_dropout 0.05 --lora_target_modules q_proj v_proj "


@pytest.fixture
def read(tmp_path: Path):
    def config(text: str, method: Method | None = None, model: str | None = None) -> TrainerConfig:
        path = tmp_path / "run.sh"
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, num_gpus=8, method=method, find_model=find_model))

    return config


def test_data_is_passed_by_and_a_length_is_taken_and_both_are_said(read):
    config = read(SCRIPT + "--data_path d.json --lazy_preprocess True --model_max_length 4096 --valid_data_path v")
    assert config.options == {**read(SCRIPT).options, "seq_len": 4096}
    notes = " ".join(config.notes)
    assert "data_path, lazy_preprocess and valid_data_path: taken for what says which data the script reads" in notes
    assert "model_max_length is taken for --seq-len" in notes
    assert {"data_path", "lazy_preprocess"} <= set(config.idle)


def test_adapters_of_a_script_are_taken_where_the_user_says_that_it_trains_some(read):
    config = read(SCRIPT + ADAPTERS + "--use_lora True", Method.LORA)
    wanted = {"lora_rank": 64, "lora_alpha": 16, "lora_dropout": 0.05, "lora_targets": "q_proj,v_proj"}
    assert {name: config.options.get(name) for name in wanted} == wanted
    for switch in ("--use_lora True", ""):
        with pytest.raises(InputError, match=r"lora_r \(--lora-rank\).*beside --method its keys of LoRA are taken"):
            read(SCRIPT + ADAPTERS + switch)


def test_adapters_that_are_switched_off_change_nothing(read):
    plain = read(SCRIPT)
    assert read(SCRIPT + ADAPTERS + "--use_lora False").options == plain.options
    assert read(SCRIPT + ADAPTERS + "--use_lora True", Method.FULL).options == plain.options


def test_a_model_by_a_key_of_the_script_is_taken_with_model_alone(read):
    script = SCRIPT.replace("--model_name_or_path", "--model_path")
    assert read(script, model=MODEL).options["micro_batch"] == 2
    with pytest.raises(InputError, match=r"model_path \(--model\) is no argument"):
        read(script)


@pytest.mark.parametrize(
    "comment", ["# vlmplan: ignore slot_lr, --use-slots", "# vlmplan: ignore slot_lr\n#vlmplan: ignore use_slots"]
)
def test_keys_that_a_comment_says_to_be_ones_own_are_left_out_and_said(read, comment: str):
    script = f"{SCRIPT}--slot_lr 1e-4 --use_slots True"
    config = read(f"{comment}\n{script}")
    assert config.options == read(SCRIPT).options
    assert {"slot_lr", "use_slots"} <= set(config.idle)
    assert "slot_lr, use_slots: left out, as a comment in" in " ".join(config.notes)
    with pytest.raises(InputError, match=r"use_slots is no argument of.*# vlmplan: ignore KEY KEY, says which"):
        read(f"# vlmplan: ignore slot_lr\n{script}")


def test_no_comment_takes_a_key_away_that_the_trainer_has(read):
    script = f"# vlmplan: ignore bf16 per_device_train_batch_size\n{SCRIPT}"
    assert read(script).options == read(SCRIPT).options
