"""OpenRLHF's scripts of samples and of preferences: as people have them, and what of them is refused."""

from pathlib import Path

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers import Asked, TrainerConfig, open_trainer_config
from vlmplan.other_trainers.editing.patch import require_own_words
from vlmplan.other_trainers.read import read_trainer_config

SCRIPT = """set -x

read -r -d '' training_commands <<EOF
openrlhf.cli.train_{program} \\
   --train.batch_size 256 \\
   --train.micro_batch_size 2 \\
   --model.model_name_or_path {model} \\
   --ds.zero_stage {stage} \\
   --adam.lr 5e-6 \\
   --ckpt.load_enable \\
   --ds.packing_samples \\
   --model.gradient_checkpointing_enable {more}
EOF
    # --wandb [WANDB_TOKENS]

if [[ ${{1}} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
"""


def read(
    folder: Path, more: str = "", *, program: str = "sft", model: str = "qwen2.5-0.5b", stage: int = 2, gpus: int = 8
) -> TrainerConfig:
    path = folder / "train.sh"
    path.write_text(SCRIPT.format(program=program, model=model, stage=stage, more=more), encoding="utf-8")
    return read_trainer_config(path, Asked(num_gpus=gpus, find_model=find_model))


def test_a_script_of_samples_is_read_as_it_stands(tmp_path):
    found = read(tmp_path)
    assert found.trainer == "OpenRLHF"
    wanted = {
        "model": "qwen2.5-0.5b",
        "method": "full",
        "precision": "bf16",
        "seq_len": 2048,
        "epochs": 2.0,
        "micro_batch": 2,
        "global_batch": 256,
        "activation_checkpointing": True,
        "batching": "padding-free",
        "attention": "flash_attention_2",
        "loss": "openrlhf",
        "optimizer": "adamw",
        "fuses_optimizer": True,
    }
    assert {name: found.options.get(name) for name in wanted} == wanted
    assert found.ds_config is not None
    assert (found.ds_config.zero_stage, found.gradient_clipping) == (2, 1.0)
    assert "ckpt.load_enable" in found.idle


def test_what_deepspeed_is_not_told_is_its_own_default(tmp_path):
    """OpenRLHF says "auto" of buckets, which DeepSpeed leaves out, where transformers makes numbers of it."""
    found = read(tmp_path, stage=3)
    assert found.ds_config is not None
    zero = found.ds_config.zero
    assert (zero.reduce_bucket_size, zero.stage3_prefetch_bucket_size) == (500_000_000, 50_000_000)


def test_adapters_in_four_bits_are_read(tmp_path):
    options = read(tmp_path, "--ds.lora.rank 32 --ds.load_in_4bit --ds.lora.target_modules q_proj v_proj").options
    wanted = {"method": "qlora", "lora_rank": 32, "lora_alpha": 16, "lora_targets": "q_proj,v_proj"}
    assert {name: options[name] for name in wanted} == wanted
    assert options["use_double_quant"] is True


def test_preferences_have_a_second_model_beside_adapters_too(tmp_path):
    for more in ("", "--ds.lora.rank 8"):
        options = read(tmp_path, more, program="dpo").options
        wanted = {"task": "dpo", "task_trainer": "openrlhf", "reference": "copy", "loss": "openrlhf", "seq_len": 512}
        assert {name: options[name] for name in wanted} == wanted


def test_a_reward_model_scores_both_answers_of_pairs_by_one_number(tmp_path):
    more = "--model.loss_type sigmoid --model.margin_loss_enable --ds.value_head_prefix score"
    options = read(tmp_path, more, program="rm").options
    wanted = {"task": "reward", "task_trainer": "openrlhf", "loss": "bradley-terry", "seq_len": 512, "method": "full"}
    assert {name: options[name] for name in wanted} == wanted
    assert "reference" not in options
    with pytest.raises(InputError, match="adapters leave the head that scores as it is drawn at random"):
        read(tmp_path, "--ds.lora.rank 8", program="rm")
    with pytest.raises(InputError, match="a head of another name"):
        read(tmp_path, "--ds.value_head_prefix value", program="rm")


def test_a_reference_waits_on_the_host_where_its_weights_are_sharded(tmp_path):
    assert read(tmp_path, "--ref.offload", program="dpo", stage=3).options["reference_shards"] == "host"
    with pytest.raises(InputError, match=r"ref.offload is true; with ds.zero_stage other than 3"):
        read(tmp_path, "--ref.offload", program="dpo")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("--ds.ring_attn_size 2", 'ds.ring_attn_size is "2"; samples that GPUs share'),
        ("--ds.tensor_parallel_size 2", 'ds.tensor_parallel_size is "2"; weights that GPUs share in a layer'),
        ("--ds.grad_accum_dtype fp32", 'ds.grad_accum_dtype is "fp32"; gradients in a type of their own'),
        ("--ds.load_in_4bit", "ds.load_in_4bit is true; without adapters it trains what is not packed alone"),
        ("--ds.lora.rank 8 --ds.lora.target_modules all-linear", "which no module has; leave it out"),
        ("--ds.param_dtype fp32", 'ds.param_dtype is "fp32"; one of bf16, fp16 is needed'),
        ("--optim lion", 'optim is "lion"; adam or muon is needed'),
        ("--train.micro_batchsize 3", "unknown key 'train.micro_batchsize'; did you mean 'train.micro_batch_size'"),
    ],
)
def test_what_is_not_planned_is_refused_by_its_name(more, words, tmp_path):
    with pytest.raises(InputError) as error:
        read(tmp_path, more)
    assert words in str(error.value)


def test_batches_that_gpus_do_not_share_evenly_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a multiple of train.micro_batch_size 2 on 3 GPUs is needed: 6, or more"):
        read(tmp_path, gpus=3)


@pytest.mark.parametrize(("model", "words"), [("granite-3.1-1b-a400m", "has experts"), ("qwen2.5-vl-3b", "which sees")])
def test_models_whose_forward_does_more_are_refused(model, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path, model=model)


@pytest.mark.parametrize("program", ["ppo_ray", "ppo"])
def test_programs_that_are_not_planned_say_which_are(program, tmp_path):
    with pytest.raises(InputError, match=f"starts openrlhf.cli.train_{program}, which trains .* not planned; its "):
        read(tmp_path, program=program)


def test_a_job_of_ray_is_looked_into(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text("ray job submit --address=http://127.0.0.1:8265 -- python3 -m openrlhf.cli.train_ppo_ray --x 1\n")
    with pytest.raises(InputError, match=r"starts openrlhf.cli.train_ppo_ray, which trains with PPO, GRPO or others"):
        read_trainer_config(path, Asked(num_gpus=8, find_model=find_model))


def test_a_script_is_not_changed(tmp_path):
    read(tmp_path)
    with pytest.raises(InputError, match="options of OpenRLHF's scripts are read, not changed"):
        require_own_words(open_trainer_config(tmp_path / "train.sh"))


def test_a_model_that_only_the_shell_knows_is_no_missing_one(tmp_path):
    with pytest.raises(InputError, match="only running the program tells") as caught:
        read(tmp_path, model="$POLICY_MODEL_PATH")
    assert "is missing" not in str(caught.value)
