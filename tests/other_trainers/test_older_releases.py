"""Files for older releases of trainers: their names of options mean what those of today mean."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig
from vlmplan.other_trainers.read import read_trainer_config

MODEL = "qwen2.5-0.5b"


@pytest.fixture
def read_file(tmp_path: Path):
    def config(text: str, name: str = "train.yaml") -> TrainerConfig:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return read_trainer_config(path, Asked(num_gpus=8, find_model=find_model))

    return config


OPENRLHF = """deepspeed --module openrlhf.cli.train_{program} --save_path out --save_steps -1 --logging_steps 1 \\
  --train_batch_size 128 --micro_train_batch_size 1 --pretrain {model} --max_epochs 1 --max_len 4096 --zero_stage 3 \\
  --learning_rate 5e-7 --dataset d --apply_chat_template --gradient_checkpointing --packing_samples --adam_offload {own}
"""
OPENRLHF_TODAY = """deepspeed --module openrlhf.cli.train_{program} --ckpt.output_dir out --ckpt.save_steps -1 \\
  --train.batch_size 128 --train.micro_batch_size 1 --model.model_name_or_path {model} --train.max_epochs 1 \\
  --data.max_len 4096 --ds.zero_stage 3 --adam.lr 5e-7 --data.dataset d --model.gradient_checkpointing_enable \\
  --ds.packing_samples --ds.adam_offload
"""


@pytest.mark.parametrize("program", ["sft", "dpo"])
def test_openrlhfs_options_without_sections_mean_those_that_have_them(read, program: str):
    older = read(OPENRLHF.format(program=program, model=MODEL, own="--bf16 --flash_attn"))
    today = read(OPENRLHF_TODAY.format(program=program, model=MODEL))
    assert older.options == today.options
    assert (older.ds_config is None, older.saving) == (today.ds_config is None, today.saving)
    assert not older.notes
    assert {"learning_rate", "dataset", "apply_chat_template", "logging_steps"} <= set(older.idle)


def test_openrlhfs_switches_that_are_not_said_are_told_with_what_is_taken(read):
    notes = " ".join(read(OPENRLHF.format(program="sft", model=MODEL, own="")).notes)
    assert "neither param_dtype nor bf16 is said: bf16, which later releases take" in notes
    assert "neither attn_implementation nor flash_attn is said: flash_attention_2" in notes
    with pytest.raises(InputError, match="unknown key 'micro_batch'"):
        read(OPENRLHF.format(program="sft", model=MODEL, own="--bf16 --flash_attn --micro_batch 2"))


def test_trls_older_names_of_length_and_liger_are_read(read_file):
    text = f"model_name_or_path: {MODEL}\ndataset_name: d\nbf16: true\n"
    older = read_file(text + "max_seq_length: 2048\nuse_liger: true\ndataset_mixer: {a: 1.0}\n")
    today = read_file(text + "max_length: 2048\nuse_liger_kernel: true\n")
    assert older.options == today.options
    assert older.options["seq_len"] == 2048
    flash = read_file(text + "use_flash_attention_2: true\n")
    assert flash.options == read_file(text + "attn_implementation: flash_attention_2\n").options
    with pytest.raises(InputError, match="unknown key 'max_seq_length'"):
        read_file(text + "max_seq_length: 2048\nmax_length: 1024\n")


def test_trls_older_limits_of_prompts_of_preferences_are_told(read_file):
    text = f"model_name_or_path: {MODEL}\ndataset_mixer: {{a: 1.0}}\nbf16: true\nbeta: 0.1\ntorch_dtype: bfloat16\n"
    older = read_file(text + "max_length: 1024\nmax_prompt_length: 512\n")
    assert older.options == read_file(text + "max_length: 1024\n").options
    assert (older.options["task"], older.options["seq_len"]) == ("dpo", 1024)
    assert "max_prompt_length: of earlier TRLs; 1.16 cuts whole rows alone, by max_length" in older.notes


def test_names_of_data_of_scripts_around_trl_are_left_and_told(read_file):
    text = f"model_name_or_path: {MODEL}\nbf16: true\nuse_peft: false\n"
    own = read_file(text + "dataset_id_or_path: a/b\ntrain_file: c.jsonl\ndataset_name: d\n")
    assert own.options == read_file(text).options
    assert "dataset_id_or_path and train_file: taken for what says which data the script reads, and how" in own.notes


def test_qwen_vl_series_older_names_of_pixels_and_the_merger_are_read(read):
    script = (
        "deepspeed src/training/train.py --model_id Qwen/Qwen2-VL-2B-Instruct --freeze_vision_tower True --bf16 True "
        "--freeze_llm False --per_device_train_batch_size 1 --disable_flash_attn2 False "
    )
    older = read(script + "--tune_merger False --min_pixels 3136 --max_pixels 401408")
    today = read(script + "--freeze_merger True --image_min_pixels 3136 --image_max_pixels 401408")
    assert older.options == today.options
    assert older.options["train_projector"] is False


def test_llama_factorys_older_name_of_the_most_pixels_is_read_and_a_side_is_refused(read_file):
    text = (
        "model_name_or_path: Qwen/Qwen2-VL-2B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: lora\nbf16: true\n"
    )
    older = read_file(text + "image_resolution: 200704\nvideo_resolution: 16384\n")
    assert older.options == read_file(text + "image_max_pixels: 200704\nvideo_max_pixels: 16384\n").options
    assert older.options["image_size"] == "448x448"
    with pytest.raises(InputError, match=r"image_resolution is 512; pixels of a whole image.* a side have 262144"):
        read_file(text + "image_resolution: 512\n")


@pytest.mark.parametrize("script", ["src/train_bash.py", "src/train.py", "LLaMA-Factory/src/train.py"])
def test_llama_factorys_own_script_takes_its_keys_as_options(read, script: str):
    keys = f"--stage sft --model_name_or_path {MODEL} --finetuning_type lora --lora_target all --cutoff_len 512 --bf16"
    found = read(f"deepspeed --num_gpus 8 {script} {keys} --dataset a,b --output_dir out")
    named = read(f"llamafactory-cli train {keys} --dataset a,b --output_dir out")
    assert found.trainer == named.trainer == "LLaMA-Factory 0.9.5"
    assert found.options == named.options


SPECIAL = "special_tokens: {pad_token: '<p>'}\n"


def test_what_axolotl_drops_is_said_and_slips_and_names_of_others_are_refused(read_file):
    text = (
        f"base_model: {MODEL}\nadapter: lora\nlora_target_linear: true\nlora_r: 8\nlora_alpha: 16\nbf16: true\n"
        "micro_batch_size: 2\ngradient_accumulation_steps: 1\n"
    )
    plain = read_file(text + "sequence_len: 1024\n")
    config = read_file(
        text + "sequence_len: 1024\nreport_to: wandb\nflash_attn_fuse_qkv: true\ntokens: ['<a>']\n" + SPECIAL
    )
    assert config.options == plain.options
    notes = " ".join(config.notes)
    assert "report_to and flash_attn_fuse_qkv are no keys of axolotl 0.19.0, which drops them without a word" in notes
    assert "a row more of embedding and head for each token that the tokenizer does not have" in notes
    for wrong in ("sequence_lenn: 1024", "per_device_train_batch_size: 8"):
        with pytest.raises(InputError, match=f"unknown key '{wrong.partition(':')[0]}'"):
            read_file(text + wrong + "\n")


LLAVA = (
    "deepspeed llava/train/train_mem.py --model_name_or_path lmsys/vicuna-7b-v1.5 --vision_tower {tower} "
    "--mm_projector_type mlp2x_gelu --bf16 True --per_device_train_batch_size 4 --model_max_length 2048 "
    "--tune_mm_mlp_adapter False --mm_use_im_start_end False "
)


def test_llavas_tower_is_known_by_its_folder_and_its_deepspeed_files_by_their_paths(read):
    tower = "openai/clip-vit-large-patch14-336"
    named = read(LLAVA.format(tower=tower))
    config = read(LLAVA.format(tower="/models/clip_vit_large_patch14_336") + "--deepspeed ./scripts/zero3.json")
    assert f"taken for {tower} by its name" in " ".join(config.notes)
    assert config.options["image_size"] == named.options["image_size"] == "336x336"
    assert config.ds_config is not None
    assert config.ds_config.zero_stage == 3
    assert "LLaVA's own is taken" in " ".join(config.notes)
    with pytest.raises(InputError, match="vision_tower is"):
        read(LLAVA.format(tower="/models/siglip-so400m-patch14-384"))


def test_a_metric_is_known_beside_the_best_model_that_it_chooses(read):
    script = f"swift sft --model {MODEL} --dataset d --torch_dtype bfloat16 --load_best_model_at_end true "
    assert read(script + "--metric_for_best_model loss --greater_is_better false").saving.keeps_best


def test_a_file_for_ms_swift_2_is_refused_as_a_whole_with_todays_names(read):
    with pytest.raises(InputError, match="it is for ms-swift 2") as caught:
        read(f"swift sft --model_id_or_path {MODEL} --sft_type lora --batch_size 2 --train_dataset_sample 100")
    assert "sft_type is tuner_type today, batch_size is per_device_train_batch_size today" in str(caught.value)
    assert "unknown key" not in str(caught.value)


def test_what_ms_swift_3_had_more_changes_nothing_or_is_refused_with_vllm(read):
    script = f"swift rlhf --rlhf_type grpo --model {MODEL} --dataset d --torch_dtype bfloat16 --max_length 512 "
    answers = "--per_device_train_batch_size 8 --num_generations 8 --tools_prompt react_en --num_infer_workers 2 "
    assert {"tools_prompt", "num_infer_workers"} <= set(read(script + answers).idle)
    with pytest.raises(InputError, match='num_infer_workers is "2"; vLLM on GPUs beside the trainer\'s'):
        read(script + answers + "--use_vllm true --vllm_mode colocate")


def test_the_optimizer_that_transformers_has_no_more_is_the_one_that_replaced_it(read_file):
    text = f"model_name_or_path: {MODEL}\ndataset_name: d\nbf16: true\noptim: "
    older, today = read_file(f"{text}adamw_hf\n"), read_file(f"{text}adamw_torch\n")
    assert older.options == today.options
    assert [note for note in older.notes if note not in today.notes] == [
        "optim adamw_hf is of earlier releases of transformers: planned as adamw_torch, which replaced it"
    ]


@pytest.mark.parametrize("alone", [True, False])
def test_llama_factorys_older_key_for_the_projector_alone_means_three_of_today(read_file, alone: bool):
    text = (
        "model_name_or_path: qwen2.5-vl-3b\nstage: sft\nfinetuning_type: full\ncutoff_len: 512\nbf16: true\n"
        "freeze_vision_tower: false\n"
    )
    keys = "freeze_vision_tower: true\nfreeze_multi_modal_projector: false\nfreeze_language_model: true\n"
    older = read_file(f"{text}train_mm_proj_only: {str(alone).lower()}\n")
    today = read_file(text.replace("freeze_vision_tower: false\n", keys) if alone else text)
    assert older.options == today.options
    assert (older.options["train_projector"], older.options["train_language"]) == (alone, not alone)
