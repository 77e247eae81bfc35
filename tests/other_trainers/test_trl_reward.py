"""What keys and keywords of TRL's reward models mean: of ``trl reward``, and of programs with ``RewardTrainer``."""

from pathlib import Path

import pytest

from trl_readings import read
from vlmplan.errors import InputError

OF_LORA = """
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: trl-lib/ultrafeedback_binarized
dtype: bfloat16
use_peft: true
lora_task_type: SEQ_CLS
lora_target_modules: all-linear
max_length: 2048
per_device_train_batch_size: 4
center_rewards_coefficient: 0.01
"""
SCRIPT = """
trl reward --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/ultrafeedback_binarized \\
  --per_device_train_batch_size 8 --num_train_epochs 1 --output_dir out --max_length 2048 --eval_strategy steps
"""
PROGRAM = """
from datasets import load_dataset
from peft import LoraConfig, TaskType
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer

model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=1, dtype="bfloat16")
adapters = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=32, target_modules=["q_proj", "v_proj"])
arguments = RewardConfig(output_dir="out", per_device_train_batch_size=3, max_length=512)
data = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
RewardTrainer(model=model, args=arguments, train_dataset=data, peft_config=adapters).train()
"""


def test_a_file_is_of_a_reward_model_by_its_keys(tmp_path: Path):
    for changes in ((), (("center_rewards_coefficient: 0.01\n", ""),)):
        options = read(tmp_path, "reward.yaml", OF_LORA, *changes).options
        assert (options["task"], options["loss"], options["seq_len"]) == ("reward", "bradley-terry", 2048)
        assert (options["method"], options["lora_targets"], options["lora_dropout"]) == ("lora", "all-linear", 0.0)


def test_a_script_trains_a_reward_model_and_evaluates_pairs(tmp_path: Path):
    found = read(tmp_path, "train.sh", SCRIPT)
    assert (found.options["task"], found.options["method"], found.options["micro_batch"]) == ("reward", "full", 8)
    assert found.options["weight_dtype"] == "float32"
    assert (found.options["eval_batch"], found.options["eval_keeps"]) == (8, "loss")
    assert not any("not planned" in note for note in found.notes)


def test_a_program_trains_a_reward_model_that_a_call_loads(tmp_path: Path):
    options = read(tmp_path, "train.py", PROGRAM).options
    assert (options["task"], options["loss"], options["micro_batch"]) == ("reward", "bradley-terry", 3)
    assert (options["lora_targets"], options["lora_rank"], options["seq_len"]) == ("q_proj,v_proj", 8, 512)


def test_metrics_of_rewards_keep_one_number_for_each_answer(tmp_path: Path):
    evaluated = PROGRAM.replace("max_length=512", 'max_length=512, eval_strategy="steps"')
    measured = evaluated.replace("peft_config=", "compute_metrics=lambda found: {}, peft_config=")
    assert read(tmp_path, "train.py", measured).options == read(tmp_path, "train.py", evaluated).options


def test_a_head_that_nothing_trains_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="lora_task_type CAUSAL_LM leaves the head that scores as it is drawn"):
        read(tmp_path, "train.py", PROGRAM, ("TaskType.SEQ_CLS", "TaskType.CAUSAL_LM"))
    by_name = ("lora_task_type: SEQ_CLS", "lora_modules_to_save: [score]")
    with pytest.raises(InputError, match="lora_task_type: SEQ_CLS is needed"):
        read(tmp_path, "reward.yaml", OF_LORA, by_name)
    named = ("all-linear", "[q_proj, v_proj]")
    assert "train_embeddings" not in read(tmp_path, "reward.yaml", OF_LORA, by_name, named).options


def test_kernels_of_ligers_and_more_modules_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="use_liger_kernel is true; Liger's kernels in a model that scores"):
        read(tmp_path, "reward.yaml", OF_LORA + "use_liger_kernel: true\n")
    with pytest.raises(InputError, match="copies of score, lm_head"):
        read(tmp_path, "reward.yaml", OF_LORA + "lora_modules_to_save: [score, lm_head]\n")


def test_adapters_under_stage_3_have_reentrant_checkpoints(tmp_path: Path):
    sharded = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'
    (tmp_path / "ds.json").write_text(sharded)
    options = read(tmp_path, "reward.yaml", OF_LORA + "deepspeed: ds.json\n", num_gpus=2).options
    assert options["reentrant_checkpoints"] is True
