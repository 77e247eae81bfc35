"""TRL's GRPO: files, commands and programs as people have them, and what of them is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vlmplan.cli.estimate import estimate
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.workload import ModelFiles

MODEL = ModelFiles(id="tiny", config={"model_type": "qwen2", "hidden_size": 64})
GRPO: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "dtype": "bfloat16",
    "dataset_name": "a/b",
    "reward_funcs": ["accuracy_reward"],
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 6,
}
PREFERENCES = {"model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct", "dataset_name": "a/b", "label_smoothing": 0.0}
PROGRAM = """
from trl import GRPOConfig, GRPOTrainer
arguments = GRPOConfig(output_dir="out", num_generations=6, max_completion_length=96, max_prompt_length=32, bf16=True)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=count, args=arguments, train_dataset=data).train()
"""
OWN = """parser.add_argument("--answers", type=int, default=4)
args = parser.parse_args()
"""


@pytest.fixture
def read(tmp_path: Path):
    def config(values: dict[str, Any] | str, name: str = "grpo.yaml", num_gpus: int = 2) -> TrainerConfig:
        path = tmp_path / name
        path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
        return read_trainer_config(path, Asked(num_gpus=num_gpus, find_model=lambda _: MODEL))

    return config


def refused(read, values: dict[str, Any], *words: str) -> None:
    with pytest.raises(InputError) as caught:
        read(GRPO | values)
    assert all(word in str(caught.value) for word in words)


def test_a_file_of_trl_grpo_is_told_by_its_keys_and_has_trls_defaults(read):
    options = read(GRPO).options
    assert (options["task"], options["generation"], options["reference"]) == ("grpo", "transformers", "none")
    assert (options["num_generations"], options["max_completion_tokens"], options["seq_len"]) == (8, 512, 512 + 512)
    assert (options["micro_batch"], options["grad_accum"], options["loss"]) == (4, 6, "trl")
    assert "steps_per_generation" not in options


@pytest.mark.parametrize(
    ("model", "keys", "is_told"),
    [
        ("olmo-3-7b", {}, True),
        ("olmo-3-7b", {"generation_kwargs": {"use_cache": True}}, False),
        ("olmo-3-7b", {"use_vllm": True}, False),
        ("qwen3-8b", {}, False),
    ],
)
def test_answers_without_a_cache_are_told_of_models_that_have_none(model: str, keys, is_told: bool, tmp_path: Path):
    path = tmp_path / "grpo.yaml"
    path.write_text(json.dumps(GRPO | {"model_name_or_path": model} | keys))
    notes = read_trainer_config(path, Asked(num_gpus=2, find_model=find_model)).notes
    assert any("use_cache: true} is what is planned" in note for note in notes) is is_told


@pytest.mark.parametrize("command", ["trl grpo", "accelerate launch trl/scripts/grpo.py", "python grpo_vlm.py"])
def test_its_command_and_its_scripts_are_read(read, command: str):
    config = read(f"{command} --model_name_or_path m --output_dir out --num_generations 4\n", "run.sh")
    assert (config.trainer, config.options["task"], config.options["num_generations"]) == ("TRL 1.16.0", "grpo", 4)


def test_a_program_is_read(read):
    config = read(PROGRAM, "train.py")
    assert (config.options["num_generations"], config.options["max_completion_tokens"]) == (6, 96)
    assert config.options["seq_len"] == 32 + 96
    assert config.options["weight_dtype"] == "float32"  # create_model_from_path


def test_options_of_a_program_are_taken_at_their_defaults(read):
    named = PROGRAM.replace("num_generations=6", "num_generations=args.answers").replace(
        "arguments =", OWN + "arguments ="
    )
    config = read(named, "train.py")
    assert config.options["num_generations"] == 4
    assert "options of the program are taken at their defaults: args.answers" in config.notes


def test_preferences_are_evaluated_as_a_file_says(read):
    config = read(PREFERENCES | {"eval_strategy": "steps", "per_device_eval_batch_size": 16})
    assert config.trainer == "TRL 1.16.0"
    assert (config.options["task"], config.options["eval_batch"], config.options["eval_keeps"]) == ("dpo", 16, "loss")


def test_open_r1_without_a_mode_is_told_that_its_own_trl_would_start_a_server(read):
    recipe = GRPO | {"use_vllm": True, "vllm_device": "auto", "system_prompt": "a"}
    assert any("vllm_device is of earlier TRLs" in note for note in read(recipe).notes)
    said = "a server on GPUs of its own"
    assert any(said in note for note in read(recipe).notes)
    assert not any(said in note for note in read(recipe | {"vllm_mode": "colocate"}).notes)


def test_keys_of_open_r1_are_known(read):
    config = read(GRPO | {"system_prompt": "Think.", "dataset_prompt_column": "question"})
    assert any("dataset_prompt_column and system_prompt are of open-r1's scripts" in note for note in config.notes)


def test_ligers_loss_of_earlier_trls_is_the_one_in_tiles_now(read):
    older = [read(GRPO), read(GRPO | {"use_liger_loss": True})]
    assert older[0].options == older[1].options
    assert any("use_liger_loss is of earlier TRLs" in note for note in older[1].notes)


def test_how_long_prompts_are_is_the_users_word_or_an_older_keys(read):
    assert any("512 tokens before the answer; give --seq-len" in note for note in read(GRPO).notes)
    options = read(GRPO | {"max_prompt_length": 700, "max_completion_length": 300}).options
    assert (options["seq_len"], options["max_completion_tokens"]) == (700 + 300, 300)


def test_a_reference_is_there_where_beta_weighs_it(read):
    assert read(GRPO | {"beta": 0.04}).options["reference"] == "copy"
    adapters = {"use_peft": True, "lora_target_modules": "all-linear"}
    assert read(GRPO | adapters | {"beta": 0.04}).options["reference"] == "adapter-off"
    assert read(GRPO | adapters | {"beta": 0}).options["reference"] == "none"


def test_vllm_beside_the_trainer_sleeps_at_level_2_and_a_server_has_gpus_of_its_own(read):
    options = read(GRPO | {"use_vllm": True, "vllm_tensor_parallel_size": 2}).options
    assert (options["generation"], options["vllm_memory_utilization"], options["vllm_sleep_level"]) == ("vllm", 0.3, 0)
    assert options["vllm_tensor_parallel"] == 2
    assert read(GRPO | {"use_vllm": True, "vllm_enable_sleep_mode": True}).options["vllm_sleep_level"] == 2
    assert read(GRPO | {"use_vllm": True, "vllm_mode": "server"}).options["generation"] == "server"


def test_answers_that_are_generated_at_once_are_said_in_either_way(read):
    assert read(GRPO | {"steps_per_generation": 12}).options["steps_per_generation"] == 12
    batch = 4 * 2 * 3  # of a GPU, GPUs, micro batches
    assert read(GRPO | {"generation_batch_size": batch}).options["steps_per_generation"] == 3
    refused(read, {"generation_batch_size": batch + 1}, "generation_batch_size is 25", "a multiple of the 8 answers")
    refused(read, {"generation_batch_size": batch, "steps_per_generation": 3}, "one of the two")


def test_max_steps_are_of_so_many_prompts(read):
    options = read(GRPO | {"max_steps": 10, "num_generations": 8}).options
    assert (options["num_samples"], options["epochs"]) == (10 * 4 * 6 * 2 / 8, 1.0)
    options = read(GRPO | {"max_steps": 10, "num_generations": 8, "num_iterations": 3}).options
    assert (options["num_samples"], options["num_iterations"]) == (10 * 4 * 6 * 2 / 8 / 3, 3)


def test_what_is_not_counted_is_said(read):
    notes = read(GRPO | {"reward_model_name_or_path": "a/judge"}).notes
    assert any("a/judge rewards: its weights are not counted; --reward-model-parameters" in note for note in notes)


def test_answers_are_evaluated_in_whole_groups(read):
    evaluates = GRPO | {"eval_strategy": "steps", "num_generations": 8}
    assert evaluated(read(evaluates)) == {"eval_batch": 8, "eval_keeps": "loss", "eval_every": 10}
    found = read(evaluates | {"num_generations_eval": 4, "per_device_eval_batch_size": 2})
    assert evaluated(found) == {"eval_batch": 2, "eval_keeps": "loss", "eval_every": 10, "eval_generations": 4}
    with pytest.raises(InputError, match="per_device_eval_batch_size is 3; on 2 GPUs a multiple of the 8 answers"):
        read(evaluates | {"per_device_eval_batch_size": 3})
    assert "num_generations_eval" in read(GRPO | {"num_generations_eval": 4}).idle


def evaluated(config) -> dict:
    return {name: value for name, value in config.options.items() if name.startswith("eval_")}


@pytest.mark.parametrize(
    "value",
    [
        {"sync_ref_model": True},
        {"entropy_coef": 0.01},
        {"use_adaptive_entropy": True},
        {"cast_lm_head_to_fp32": True},
        {"use_transformers_paged": True},
        {"loss_type": "of_mine"},
        {"vllm_mode": "nearby", "use_vllm": True},
        {"num_generations": 1},
        {"max_length": 7},
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_has_no_plan_is_refused_by_its_key(read, value: dict[str, Any]):
    refused(read, value, next(iter(value)))


def test_a_file_means_what_its_options_mean(tmp_path: Path):
    path = tmp_path / "grpo.json"
    more = {"use_peft": True, "lora_target_modules": "all-linear", "lora_dropout": 0.0, "num_generations": 4}
    path.write_text(json.dumps(GRPO | more), encoding="utf-8")
    card = ["--gpu", "a100-sxm4-80gb:2", "--json"]
    whole = json.loads(CliRunner().invoke(estimate, ["--config", str(path), *card]).output)
    words = (
        "--model qwen2.5-0.5b --task grpo --method lora --lora-rank 16 --lora-alpha 32 --lora-dropout 0 --loss trl "
        "--zero-stage none --max-completion-tokens 512 --seq-len 1024 --num-generations 4 --micro-batch 4 "
        "--grad-accum 6 --adapter-dtype float32 --no-expandable-segments --batches-on-gpu step-float32 "
        "--input-gradients all --fused-optimizer --epochs 3"
    ).split()
    by_options = json.loads(CliRunner().invoke(estimate, [*words, *card]).output)
    assert (whole["phases"], whole["step_seconds"]) == (by_options["phases"], by_options["step_seconds"])
