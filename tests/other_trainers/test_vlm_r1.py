"""What VLM-R1's and R1-V's scripts make of their options, and what vlmplan makes of those."""

from pathlib import Path
from typing import Any

import pytest

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.editing.vlm_r1_keys import vlm_r1_changes
from vlmplan.other_trainers.read import read_trainer_config
from vlmplan.other_trainers.shell import commands_of
from vlmplan.other_trainers.shell_variables import UNKNOWN
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind, TaskTrainer
from vlmplan.workload import Workload

BATCH = "--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --bf16 --gradient_checkpointing true"
RUN = f"torchrun --nproc_per_node=8 src/open_r1/grpo_jsonl.py {BATCH} --data_file_paths a.jsonl --image_folders a"
ADAPTED = f"{RUN} --use_peft true --lora_r 64 --lora_alpha 128"
OWN_FOLDER = 'ROOT="$( cd "$( dirname "${BASH_SOURCE[0]}" )/.." && pwd )"'


@pytest.fixture
def read(tmp_path: Path):
    def config(text: str, model: str | None = "qwen2.5-vl-3b", name: str = "run.sh") -> TrainerConfig:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(model=model, num_gpus=8, find_model=find_model))

    return config


def options(config: TrainerConfig, *names: str) -> list[Any]:
    return [config.options.get(name) for name in names]


def test_every_micro_batch_generates_its_own_answers_and_scores_all_logits(read):
    config = read(RUN)
    assert config.trainer == "VLM-R1"
    assert options(config, "task", "task_trainer", "loss") == ["grpo", "vlm-r1", "rows"]
    assert options(config, "steps_per_generation", "generation", "num_generations") == [1, "transformers", 8]
    assert options(config, "seq_len", "max_completion_tokens") == [512 + 256, 256]
    assert options(config, "train_vision", "train_projector") == [True, True]


@pytest.mark.parametrize(
    ("more", "reference"), [("", "copy"), ("--beta 0.0", "none"), ("--use_peft true", "adapter-off")]
)
def test_the_reference_is_a_copy_the_model_without_adapters_or_none(read, more, reference):
    assert read(f"{RUN} {more}").options["reference"] == reference


def test_adapters_are_on_the_language_model_and_its_head_whatever_is_said(read):
    config = read(f"{ADAPTED} --lora_target_modules q_proj")
    assert options(config, "method", "lora_rank", "train_vision", "train_projector") == ["lora", 64, False, False]
    assert "lm_head" in config.options["lora_targets"]
    assert any("lora_target_modules has no effect" in note for note in config.notes)


def test_the_merger_is_frozen_with_qwens_tower_and_internvls_projector_is_not(read):
    frozen = f"{RUN} --freeze_vision_modules true"
    assert options(read(frozen), "train_vision", "train_projector") == [False, False]
    assert options(read(frozen, "internvl2.5-2b"), "train_vision", "train_projector") == [False, True]


def test_a_prompt_has_room_for_the_largest_image_that_max_pixels_allows(read):
    config = read(f"{RUN} --max_pixels 401408")
    assert config.options["image_size"] == "633x633"
    assert config.options["seq_len"] == 512 + 529 + 256


def test_a_folder_of_a_script_is_the_model_of_its_name(read):
    config = read(f"{RUN} --model_name_or_path /data/ckpt/Qwen2.5-VL-3B-Instruct", None)
    assert config.options["model"] == "Qwen/Qwen2.5-VL-3B-Instruct"


def test_a_second_model_of_qwen_under_zero_3_cannot_be_loaded_as_it_says(read, tmp_path):
    (tmp_path / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}')
    said = "AutoModelForCausalLM"
    assert any(said in note for note in read(f"{RUN} --deepspeed zero3.json").notes)
    assert not any(said in note for note in read(f"{RUN} --deepspeed zero3.json --beta 0").notes)
    assert not any(said in note for note in read(RUN).notes)


def test_a_file_of_its_keys_is_its_own(read):
    keys = "data_file_paths: a\nimage_folders: b\nmodel_name_or_path: x\nbf16: true\nnum_generations: 8\n"
    assert read(keys, name="args.yaml").trainer == "VLM-R1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{RUN} --load_in_4bit true", "load_in_4bit is .*packs no weights"),
        (f"{RUN} --num_iterations 2", "num_iterations is .2"),
        (RUN.replace("--bf16", ""), "--bf16 is"),
        (RUN.replace("grpo_jsonl", "grpo_rec"), "torch_dtype is not said"),
        (f"{RUN} --use_liger_kernel true", "use_liger_kernel is"),
        (f"{RUN} --what 1", "unknown key 'what'"),
    ],
)
def test_what_is_not_planned_is_refused_by_name(read, text, said):
    with pytest.raises(InputError, match=said):
        read(text)


R1_V = (
    "torchrun --nproc_per_node=8 src/open_r1/grpo.py --dataset_name d --max_prompt_length 1024 --bf16 "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 --gradient_checkpointing true --max_pixels 401408 "
    "--attn_implementation flash_attention_2 --num_generations 8"
)


def test_r1_v_makes_all_answers_of_a_sample_and_loads_weights_in_float32(read):
    config = read(R1_V)
    assert config.trainer == "R1-V"
    assert options(config, "task_trainer", "loss", "reference") == ["r1-v", "rows", "copy"]
    assert options(config, "micro_batch", "grad_accum", "num_generations") == [8, 2, 8]
    assert options(config, "weight_dtype", "precision") == ["float32", "bf16"]
    assert options(config, "seq_len", "max_completion_tokens") == [512 + 529 + 256, 256]
    assert "per_device_train_batch_size 1 makes 8 rows: 8 answers to each prompt" in config.notes


def test_a_copy_of_r1_vs_script_is_known_by_its_answers_beside_pixels(read):
    renamed = R1_V.replace("grpo.py", "grpo_grounding.py")
    assert read(renamed).options == read(R1_V).options
    said = "grpo_grounding.py is taken for a copy of R1-V's grpo.py, by its options"
    assert [any(said in note for note in read(one).notes) for one in (renamed, R1_V)] == [True, False]
    with pytest.raises(InputError, match="num_generations are no arguments of Hugging Face's Trainer"):
        read(renamed.replace("--max_pixels 401408", ""))


def test_a_copy_of_r1_vs_script_that_names_its_data_as_open_r1_video_does_is_known_by_that(read):
    named = R1_V.replace("--max_pixels 401408", "--jsonl_path clips.jsonl")
    assert read(named).trainer == "R1-V"
    assert "jsonl_path" in read(named).idle
    assert any("jsonl_path is of copies for videos" in note for note in read(named).notes)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--use_vllm true", "use_vllm is .*another trainer of R1-V's"),
        ("--use_peft true", "use_peft is .*whole models are"),
        ("--temporal true", "unknown key 'temporal'"),
    ],
)
def test_what_r1_v_does_otherwise_is_refused_by_name(read, more, said):
    with pytest.raises(InputError, match=said):
        read(f"{R1_V} {more}")


def test_r1_vs_reference_runs_while_all_that_backward_needs_is_kept():
    words = "estimate --model qwen2.5-vl-3b --gpu h100-sxm:8 --task grpo --loss rows --micro-batch 8 --zero-stage 2 "
    words += "--steps-per-generation 1 --num-generations 8 --seq-len 1024 --reference copy --json --task-trainer"
    of_r1_v, of_vlm_r1 = (call(*words.split(), name).document for name in ("r1-v", "vlm-r1"))
    peaks = [{one["name"]: one["peak_bytes"] for one in found["phases"]} for found in (of_r1_v, of_vlm_r1)]
    names = [one["name"] for one in of_r1_v["phases"]]
    assert names.index("forward") < names.index("reference") < names.index("backward")
    assert peaks[0]["reference"] > peaks[0]["forward"]
    assert peaks[0]["reference"] - peaks[1]["reference"] > 8 * 1024 * 151936 * 2  # of logits that are kept


def test_the_folder_of_a_script_is_known_where_it_lies_in_one():
    script = f'{OWN_FOLDER}\ncd "$ROOT"\nrun "${{ROOT}}/out"'
    words = [command.words for command in commands_of(script, source="x.sh", folder=Path("/a/b"))]
    assert words[-1] == ("run", "/a/out")
    assert UNKNOWN in commands_of(script, source="x.sh")[-1].words[1]


def test_adapters_beside_a_second_model_are_refused_with_the_way_out():
    words = "estimate --model qwen2.5-vl-3b --gpu h100-sxm:8 --task grpo --task-trainer vlm-r1 --loss rows "
    words += "--steps-per-generation 1 --num-generations 8 --zero-stage 3 --method lora --reference adapter-off"
    assert "give --zero-stage 2, or --reference none" in call(*words.split()).err


def test_a_fix_changes_the_batch_and_the_checkpoints_and_nothing_that_no_option_says():
    before = Recipe(zero_stage=2, micro_batch=8, grad_accum=2, loss=LossKind.ROWS)
    after = before.with_changes(micro_batch=4, grad_accum=4)
    samples = Workload(model=find_model("qwen2.5-vl-3b"))
    assert vlm_r1_changes((before, samples), (after, samples)) == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
    }
    with pytest.raises(InputError, match="no option for it"):
        vlm_r1_changes((before, samples), (before.with_changes(tiled_mlp=True), samples))


def test_a_fix_of_r1_v_counts_samples_and_not_their_rows():
    task = TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.R1_V, num_generations=4)
    before = Recipe(zero_stage=2, micro_batch=8, grad_accum=2, loss=LossKind.ROWS, task=task)
    samples = Workload(model=find_model("qwen2.5-vl-3b"))
    after = before.with_changes(micro_batch=4, grad_accum=4)
    changes = vlm_r1_changes((before, samples), (after, samples))
    assert changes == {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    with pytest.raises(InputError, match="no option for it"):
        vlm_r1_changes((before, samples), (before.with_changes(micro_batch=2, grad_accum=8), samples))
