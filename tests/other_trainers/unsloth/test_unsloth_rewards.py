"""Unsloth's GRPO: programs as its notebooks have them, and what of them is refused."""

from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.notes import Caveat
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config, read_opened

PROGRAM = """\
import os
os.environ["UNSLOTH_VLLM_STANDBY"] = "0"
from unsloth import FastLanguageModel
max_seq_length = 1024
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Meta-Llama-3.1-8B-Instruct",
    max_seq_length = max_seq_length,
    load_in_4bit = False,
    fast_inference = True,
    max_lora_rank = 32,
    gpu_memory_utilization = 0.6,
)
model = FastLanguageModel.get_peft_model(model, r = 32, lora_alpha = 64, use_gradient_checkpointing = "unsloth")
max_prompt_length = 256
training_args = GRPOConfig(
    temperature = 1.0,
    optim = "adamw_8bit",
    per_device_train_batch_size = 1,
    gradient_accumulation_steps = 1,
    num_generations = 6,
    max_prompt_length = max_prompt_length,
    max_completion_length = max_seq_length - max_prompt_length,
    max_steps = 250,
)
trainer = GRPOTrainer(model = model, reward_funcs = [count], args = training_args, train_dataset = dataset)
trainer.train()
"""


@pytest.fixture
def read(tmp_path):
    def config(*changes: tuple[str, str], **asked: Any) -> TrainerConfig:
        text = PROGRAM
        for one, other in changes:
            assert one in text
            text = text.replace(one, other)
        opened = open_trainer_config(tmp_path / "train.py", text)
        return read_opened(opened, Asked(find_model=find_model, **{"num_gpus": 1, **asked}))

    return config


def test_a_program_is_planned_with_unsloths_loss_and_vllm_that_shares_the_weights(read):
    options = read().options
    assert (options["task"], options["task_trainer"], options["loss"]) == ("grpo", "unsloth", "unsloth")
    assert (options["generation"], options["vllm_memory_utilization"]) == ("vllm", 0.6)
    assert (options["seq_len"], options["max_completion_tokens"]) == (1024, 1024 - 256)
    assert (options["reference"], options["method"]) == ("none", "lora")
    assert (options["offload_activations"], options["optimizer"]) == (True, "adamw-8bit")


def test_a_micro_batch_becomes_a_group_where_steps_have_no_whole_ones(read):
    config = read()
    assert (config.options["micro_batch"], config.options["num_samples"]) == (6, 250)
    assert any("batch_size 1 makes no whole groups of 6 answers: Unsloth takes 6" in note for note in config.notes)
    whole = read(("accumulation_steps = 1", "accumulation_steps = 3"), ("batch_size = 1", "batch_size = 4")).options
    assert (whole["micro_batch"], whole["grad_accum"]) == (4, 3)


@pytest.mark.parametrize(
    ("said", "reference"),
    [
        ("", "none"),
        ("beta = 0.04, ", "adapter-off"),
        ('loss_type = "dr_grpo", ', "none"),
        ('loss_type = "bnpo", ', "adapter-off"),
        ('loss_type = "bnpo", beta = 0.0, ', "none"),
    ],
)
def test_a_reference_runs_where_beta_is_not_0_which_the_loss_decides(read, said: str, reference: str):
    config = read(("temperature = 1.0", f"{said}temperature = 1.0"))
    assert config.options["reference"] == reference
    is_unsaid = reference == "none" and "beta" not in said
    assert any("beta is not said" in note for note in config.notes) is is_unsaid


def test_what_the_loss_of_earlier_releases_took_more_is_said(read):
    logits = 6 * 768 * 128_256 * 2
    assert any(f"backward: {logits / 1024**3:.2f} GiB more" in note for note in read().notes)


def test_a_correction_looks_answers_up_once_more(read):
    said = read(("temperature = 1.0", "vllm_importance_sampling_correction = True"))
    assert any("looked up once more" in note for note in said.notes)
    assert not any("looked up once more" in note for note in read().notes)


def test_standby_leaves_what_vllm_takes_to_the_gpu(read):
    config = read(('STANDBY"] = "0"', 'STANDBY"] = "1"'))
    assert (config.options["vllm_sleep_level"], config.options["expandable_segments"]) == (2, False)
    assert "vllm_memory_utilization" not in config.options
    assert any("71 to 88% of the GPU" in note for note in config.notes)


def test_models_that_see_have_no_standby(read):
    seeing = ("unsloth/Meta-Llama-3.1-8B-Instruct", "unsloth/Qwen2.5-VL-7B-Instruct")
    options = read(('STANDBY"] = "0"', 'STANDBY"] = "1"'), seeing, ("FastLanguageModel", "FastVisionModel")).options
    assert (options["vllm_memory_utilization"], "vllm_sleep_level" in options) == (0.6, False)


def test_without_fast_inference_the_model_generates(read):
    config = read(("fast_inference = True", "fast_inference = False"))
    assert config.options["generation"] == "transformers"
    assert any("computes a prompt once" in note for note in config.notes)


def test_parts_of_a_mini_batch_are_forwards_for_log_probabilities(read):
    changed = ("temperature = 1.0", "unsloth_grpo_mini_batch = 4, beta = 0, num_iterations = 2")
    options = read(changed).options
    assert (options["scoring_batch"], options["reference"], options["num_iterations"]) == (2, "none", 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("max_seq_length,", "max_seq_length, full_finetuning = True,"), "full_finetuning is true; on rewards"),
        (("temperature = 1.0", 'vllm_mode = "server"'), 'vllm_mode is "server"; a server'),
        (("r = 32,", 'r = 32, modules_to_save = ["lm_head"],'), "heads and embeddings that are trained on rewards"),
        (("r = 32,", 'r = 32, target_modules = ["q_proj", "lm_head"],'), "heads and embeddings that are trained"),
    ],
)
def test_what_is_not_planned_is_refused(read, change, words):
    with pytest.raises(InputError) as caught:
        read(change)
    assert words in str(caught.value)


def test_what_was_published_of_other_versions_is_said(read):
    assert [note for note in read().notes if isinstance(note, Caveat) and "versions before the one" in note]


def test_a_program_is_checked_as_its_options_are_estimated(tmp_path: Path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    checked, found = (
        call(*words, "--gpu", "a100-sxm4-80gb:1", "--json")
        for words in (("check", str(program)), ("estimate", "--config", str(program)))
    )
    assert checked.code == found.code == 0, checked.err + found.err
    phases = [phase["name"] for phase in found.document["phases"]]
    assert phases[2:5] == ["generate", "forward", "backward"]  # nothing is sent to vLLM
