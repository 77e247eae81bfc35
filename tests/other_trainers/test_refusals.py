"""Files and scripts that are not read, or not wholly: what is said of them, in one sentence."""

import json
from pathlib import Path

import pytest

from cli_calls import call
from vlmplan.cli import estimate
from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.plain_trainer import MAX_NAMED, OPTIONS_OF_SCRIPTS
from vlmplan.other_trainers.read import read_trainer_config

MODEL = "qwen2.5-0.5b"
TRL_FILE = "model_name_or_path: m\ndataset_name: d\n"
BATCH = "--per_device_train_batch_size 4 --bf16 True"
OF_LLAVA = f"""lr=2e-7
args="
    --model_name_or_path {MODEL} \\
    --version v1 \\
    --tune_mm_mlp_adapter True \\
    --lora_enable True \\
    {BATCH} \\
    --learning_rate ${{lr}} \\
    --model_max_length 2048"
torchrun --nproc_per_node=8 llava/train/train_mem.py ${{args}}
"""


@pytest.fixture
def read(tmp_path: Path):
    def config(text: str, name: str = "run.sh", num_gpus: int = 8) -> TrainerConfig:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(model=MODEL, num_gpus=num_gpus, find_model=find_model))

    return config


def sentence(read, text: str, name: str = "run.sh") -> str:
    with pytest.raises(InputError) as caught:
        read(text, name)
    return str(caught.value)


# -- keys of scripts of one's own -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "base_model: {model_id: a/b}\nadapter: {r: 8}\noptimizer: adamw\nsequence_len: 512\n",
        "model: {name: a/b}\ndataset: {name: c}\npeft: {r: 8}\n",
        "model_path: a/b\nmicro_batch_size: 1\ngradient_accumulation_steps: 4\nrollout_n: 4\n",
    ],
)
def test_a_file_with_a_trainers_words_that_is_none_of_its_own_is_told(text, tmp_path):
    (tmp_path / "settings.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="those of a program of one's own"):
        read_trainer_config(tmp_path / "settings.yaml", Asked(find_model=find_model))


def test_a_scripts_own_keys_are_named_once_together_with_the_options_that_mean_the_same(read):
    said = sentence(read, OF_LLAVA)
    named = "version, tune_mm_mlp_adapter (--freeze-projector) and lora_enable (--method)"
    assert f"{named} are no arguments of" in said
    assert "did you mean" not in said
    assert said.count("Hugging Face's Trainer") == 1


def test_a_slip_in_a_key_of_the_trainer_is_told_from_a_scripts_own_keys(read):
    said = sentence(read, f"torchrun train.py {BATCH} --gradient_acumulation_steps 2 --my_path x")
    assert "unknown key 'gradient_acumulation_steps'; did you mean 'gradient_accumulation_steps'" in said
    assert "my_path is no argument of" in said


def test_of_very_many_keys_the_first_are_named(read):
    keys = " ".join(f"--own_{number} 1" for number in range(MAX_NAMED + 7))
    assert f"own_{MAX_NAMED - 1} and 7 more are no arguments" in sentence(read, f"torchrun train.py {BATCH} {keys}")


def test_options_that_stand_for_keys_of_scripts_are_there():
    known = {
        option for parameter in estimate.estimate.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    assert not {f"--{option}" for option in OPTIONS_OF_SCRIPTS.values()} - known


def test_a_value_that_is_wrong_is_named_once(read):
    said = sentence(read, "stage: sft\nfinetuning_type: lora\nbf16: true\nimage_max_pixels: -1\n", "lf.yaml")
    assert said.endswith("lf.yaml: image_max_pixels is -1; a number of 1 or more is needed")


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("lora_rank: 2026-01-31", 'lora_rank is "2026-01-31"; a number of 1 or more is needed'),
        ("lora_rank: 2000000000", "lora_rank is 2000000000; a number of at most 1,000,000,000 is needed"),
        ("num_train_epochs: 0", "num_train_epochs is 0; a number above 0 is needed"),
        ("---\nbf16: true", "has 2 YAML documents, divided by ---; one is needed"),
    ],
)
def test_a_value_that_no_run_can_have_is_told_by_the_key_of_the_file(read, line: str, end: str):
    assert sentence(read, f"stage: sft\nfinetuning_type: lora\nfp16: true\n{line}\n", "lf.yaml").endswith(end)


@pytest.mark.parametrize(("text", "held"), [("# none\n", "is empty"), ("{}", "holds {}")])
def test_a_file_without_keys_says_what_it_holds(read, text: str, held: str):
    assert sentence(read, text, "sft.yaml").endswith(f"sft.yaml {held}; keys and values of a configuration are needed")


def test_names_are_a_list_or_text(read):
    said = sentence(read, f"{TRL_FILE}use_peft: true\nlora_target_modules: {{q_proj: 1}}\n", "sft.yaml")
    assert 'lora_target_modules is {"q_proj": 1}; a list of names, or text with commas between them is needed' in said


def test_mistakes_of_a_file_name_it_once(read):
    said = sentence(read, "dataset_name: d\nuse_peft: true\ndataset_shape: d\nmax_lengths: 8\n", "sft.yaml")
    assert said.count("sft.yaml") == 1
    assert "(1) unknown key 'dataset_shape'" in said
    assert said.endswith("(2) unknown key 'max_lengths'; did you mean 'max_length' or 'generation_max_length'?")


# -- files of tools that are not read --------------------------------------------------------------------------------

LITGPT = (
    "checkpoint_dir: c\nout_dir: o\nprecision: bf16-true\nquantize: bnb.nf4\ndevices: 1\nlora_r: 32\nlora_query: true\n"
)
FOUNDRY = "max_seq_len: 2048\nmodel: {name: hf_causal_lm}\ntrain_loader: {}\nmax_duration: 2ep\nprecision: amp_bf16\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (LITGPT, "LitGPT"),
        (FOUNDRY, "LLM-Foundry"),
        ("trainer_type: hf_trainer\nmodel_config: {}\ndataset_config: {}\ntrainer_args: {bf16: true}\n", "lmms-engine"),
        ("name: peft\ntrainer: {devices: 8}\nexp_manager: {}\nmodel: {micro_batch_size: 1}\n", "NeMo"),
    ],
)
def test_a_file_of_a_tool_that_is_not_read_is_told_by_its_keys(read, text: str, name: str):
    assert f"looks like a configuration of {name}: " in sentence(read, text, "train.yaml")


@pytest.mark.parametrize(("name", "text"), [("train.py", "import torch\n"), ("train.ipynb", '{"cells": []}')])
def test_a_program_is_sent_to_rehearse(read, name: str, text: str):
    assert "vlmplan rehearse --gpu NAME:COUNT -- python train.py" in sentence(read, text, name)


# -- scripts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trl rloo --model_name_or_path m", "starts trl rloo, which is not planned"),
        (f"accelerate launch examples/scripts/orpo.py {BATCH}", "starts orpo.py, which is not planned"),
        ("swift rlhf --rlhf_type gkd --model m", "starts swift rlhf for gkd, which is not planned"),
        ("llamafactory-cli export merge.yaml", "starts llamafactory-cli export, which is not planned"),
        ("echo hello", "holds no command that is known to train"),
        ('echo "start it: accelerate launch train.py"', "holds no command that is known to train"),
        ("torchrun llm_sft.py --sft_type lora", "starts llm_sft.py for ms-swift 2, which is not planned"),
        (
            "torchrun -m verl.trainer.fsdp_sft_trainer a.b=1",
            "starts verl.trainer.fsdp_sft_trainer, which is not read; ",
        ),
        ("torchrun my_own.py --lr 1", "starts my_own.py without options of Hugging Face's Trainer"),
    ],
)
def test_a_script_that_trains_otherwise_is_told_by_what_it_starts(read, command: str, words: str):
    assert words in sentence(read, f"#!/bin/bash\n{command}\n")


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        (f"python train.py {BATCH}", "1 process"),
        (f"torchrun --nproc_per_node 4 train.py {BATCH}", "4 processes"),
        ("CUDA_VISIBLE_DEVICES=0 swift sft --tuner_type lora --torch_dtype bfloat16", "1 process"),
        ("NPROC_PER_NODE=2 swift sft --tuner_type lora --torch_dtype bfloat16", "2 processes"),
        (f"srun python train.py {BATCH}", None),
        (f"deepspeed train.py {BATCH}", None),
    ],
)
def test_a_script_that_starts_other_than_the_planned_processes_says_so(read, command: str, starts: str | None):
    notes = [note for note in read(command).notes if "planned on 8 GPUs" in note]
    assert [f"starts {starts};" in note for note in notes] == ([True] if starts else [])


def test_a_script_that_starts_on_several_machines_alone_says_so(read):
    for command in (
        "NNODES=4 llamafactory-cli train --stage sft --bf16 --cutoff_len 64",
        f"deepspeed --num_nodes 4 train.py {BATCH}",
    ):
        notes = [note for note in read(command).notes if "machines" in note]
        assert [note.endswith("starts on 4 machines; planned on 1, as --num-nodes says") for note in notes] == [True]


def test_a_file_of_trl_says_how_many_processes_it_starts(read):
    notes = read(f"{TRL_FILE}num_processes: 4\n", "sft.yaml").notes
    assert [note for note in notes if note.endswith("sft.yaml starts 4 processes; planned on 8 GPUs, as --gpu says")]
    assert not any("starts" in note for note in read(f"{TRL_FILE}num_processes: 8\n", "sft.yaml").notes)


# -- files of trainers that are read, for something else --------------------------------------------------------------

OF_LLAMA_FACTORY = f"model_name_or_path: {MODEL}\nfinetuning_type: lora\ntemplate: qwen\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{OF_LLAMA_FACTORY}infer_backend: huggingface\n", "has infer_backend and no do_train: it does not train"),
        (f"{OF_LLAMA_FACTORY}export_dir: merged\n", "has export_dir and no do_train: it does not train"),
        (f"{OF_LLAMA_FACTORY}stage: sft\nbf16: true\ndo_train: false\n", "do_train is false"),
        (
            f"{OF_LLAMA_FACTORY}stage: sft\ntensor_model_parallel_size: 2\npipeline_model_parallel_size: 1\n",
            "looks like a configuration of Megatron, whose parallelism is not planned",
        ),
        (
            "model: m\ntuner_type: lora\nmicro_batch_size: 1\nglobal_batch_size: 4\n",
            "looks like a configuration of Megatron",
        ),
        ("rlhf_type: gkd\nmodel: m\ntuner_type: lora\n", "swift rlhf for gkd, which is not planned"),
        (
            "model: {}\ncheckpointer: {}\ntokenizer: {}\ndtype: bf16\nquantizer: null\nmax_seq_length: 9\n",
            "of torchtune",
        ),
    ],
)
def test_what_is_no_supervised_fine_tuning_is_told_by_what_it_is(read, text: str, words: str):
    said = sentence(read, text, "train.yaml")
    assert words in said
    assert "unknown key" not in said


def test_a_file_that_does_not_say_to_train_is_planned_and_told(read):
    text = f"{OF_LLAMA_FACTORY}stage: sft\nbf16: true\n"
    question = "do_train is not set, without which LLaMA-Factory trains nothing"
    assert any(question in note for note in read(text, "train.yaml").notes)
    assert not any(question in note for note in read(f"{text}do_train: true\n", "train.yaml").notes)


def test_accelerates_launcher_starts_the_script_of_llama_factory_with_a_file_of_its_keys(read, tmp_path: Path):
    (tmp_path / "sft.yaml").write_text(f"{OF_LLAMA_FACTORY}stage: sft\nbf16: true\ndo_train: true\n")
    config = read("accelerate launch --num_processes 8 src/train.py sft.yaml\n")
    assert config.trainer.startswith("LLaMA-Factory")
    assert config.options["method"] == "lora"


def test_a_type_that_accelerate_does_not_hand_to_deepspeed_is_no_reason_to_refuse_its_file(read):
    section = "deepspeed_config:\n  zero_stage: 3\n  seq_parallel_communication_data_type: bf16\n"
    config = read(f"compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n{section}", "accelerate.yaml")
    assert config.ds_config is not None
    assert config.ds_config.zero_stage == 3


# -- what a null and two kinds of checkpoints mean --------------------------------------------------------------------

UNCUT = "a sample may have 32,768 tokens, the model's own limit"


@pytest.mark.parametrize("name", ["sft_vlm.py", "sft_vlm_gemma3.py"])
def test_a_length_that_is_null_cuts_nothing_in_trl(read, name: str):
    assert read(TRL_FILE, "sft.yaml").options["seq_len"] == 1024
    null = read(f"{TRL_FILE}max_length: null\n", "sft.yaml")
    script = read(f"accelerate launch {name} --dataset_name d --max_length 512 --model_name_or_path m\n")
    for config in (null, script):
        assert "seq_len" not in config.options
        assert any(UNCUT in note for note in config.notes)


def test_ms_swift_leaves_checkpoints_to_fsdp2_where_both_are_asked_for(read):
    swift = "NPROC_PER_NODE=8 swift sft --tuner_type full --torch_dtype bfloat16 --max_length 512 --fsdp fsdp2"
    config = read(f"{swift}\n")
    assert (config.options["fsdp"], config.options["activation_checkpointing"]) == (True, True)
    assert any("gradient_checkpointing is turned off" in note for note in config.notes)
    alone = read(f"{swift} --gradient_checkpointing false\n")
    assert alone.options == config.options
    assert not any("turned off" in note for note in alone.notes)


# -- optimizers that DeepSpeed makes itself ---------------------------------------------------------------------------


def with_deepspeeds_adam(folder: Path, stage: int, **params: object) -> tuple[str, ...]:
    """``estimate`` of a file of TRL's with a DeepSpeed file that has an ``optimizer`` of these ``params``."""
    content = {
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", **params}},
    }
    (folder / "zero.json").write_text(json.dumps(content), encoding="utf-8")
    file = folder / "sft.yaml"
    file.write_text(f"model_name_or_path: {MODEL}\ndataset_name: d\nbf16: true\ndeepspeed: zero.json\n")
    return "estimate", "--config", str(file), "--gpu", "a100-sxm4-80gb:2", "--json"


@pytest.mark.parametrize(
    ("stage", "params", "fused", "is_own"),
    [(0, {}, True, True), (0, {"torch_adam": True}, False, False), (1, {}, True, False)],
)
def test_deepspeed_makes_its_own_adam_which_matters_at_stage_0(tmp_path, stage, params, fused, is_own):
    recipe = call(*with_deepspeeds_adam(tmp_path, stage, **params)).document["recipe"]
    assert (recipe["zero_stage"], recipe["optimizer"], recipe["fuses_optimizer"]) == (stage, "adamw", fused)
    assert recipe["deepspeed_adam"] is is_own


def test_a_program_that_takes_its_arguments_from_a_command_points_to_the_script_that_starts_it(read):
    program = (
        "from transformers import HfArgumentParser, Trainer, TrainingArguments, AutoModelForCausalLM\n"
        "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
        "model = AutoModelForCausalLM.from_pretrained('gpt2')\nTrainer(model=model, args=args).train()\n"
    )
    said = sentence(read, program, "train.py")
    assert said.endswith("give the shell script that holds that, which is read")
    assert "shell script" not in sentence(read, program.replace("HfArgumentParser", "Parser"), "train.py")


@pytest.mark.parametrize(
    "own", ["--dataset_use d --tune_mm_llm True", "--freeze_vision_tower True --freeze_merger True"]
)
def test_options_of_qwen_vls_scripts_beside_another_model_are_refused(read, own: str):
    said = sentence(read, f"torchrun train.py {BATCH} {own}")
    assert "the model is of type qwen2; these options are of a script for Qwen-VL" in said


def test_a_loop_of_ones_own_with_the_trainers_options_is_not_taken_for_the_trainer(read):
    said = sentence(read, f"accelerate launch run_clm_no_trainer.py {BATCH} --model_name_or_path {MODEL}")
    assert "starts run_clm_no_trainer.py for a loop of its own, which is not planned" in said
