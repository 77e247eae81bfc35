"""What keys and keywords of TRL's KTO mean: of ``trl kto``, and of programs with ``KTOTrainer``."""

from pathlib import Path

import pytest

from trl_readings import read
from vlmplan.errors import InputError

OF_LORA = """
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: trl-lib/kto-mix-14k
dtype: bfloat16
use_peft: true
lora_target_modules: all-linear
max_length: 2048
per_device_train_batch_size: 4
desirable_weight: 1.33
"""
SCRIPT = """
python trl/scripts/kto.py --dataset_name trl-lib/kto-mix-14k --model_name_or_path=Qwen/Qwen3-0.6B \\
  --per_device_train_batch_size 16 --num_train_epochs 1 --learning_rate 5e-7 --output_dir out \\
  --precompute_ref_log_probs
"""
PROGRAM = """
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import KTOConfig, KTOTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
arguments = KTOConfig(output_dir="out", loss_type="apo_zero_unpaired", per_device_train_batch_size=1, max_length=512)
data = load_dataset("trl-lib/kto-mix-14k", split="train")
KTOTrainer(model=model, args=arguments, train_dataset=data).train()
"""


def test_a_file_is_of_kto_by_its_weights_or_its_loss(tmp_path: Path):
    for changes in ((), (("desirable_weight: 1.33", "loss_type: kto"),)):
        options = read(tmp_path, "kto.yaml", OF_LORA, *changes).options
        assert (options["task"], options["kto_loss"], options["seq_len"]) == ("kto", "kto", 2048)
        assert (options["method"], options["micro_batch"], options["lora_dropout"]) == ("lora", 4, 0.0)


def test_a_script_of_trls_trains_with_log_probabilities_of_before(tmp_path: Path):
    options = read(tmp_path, "train.sh", SCRIPT).options
    assert (options["task"], options["reference"], options["micro_batch"]) == ("kto", "precomputed", 16)


def test_a_program_trains_with_the_loss_that_estimates_nothing(tmp_path: Path):
    options = read(tmp_path, "train.py", PROGRAM).options
    assert (options["task"], options["kto_loss"], options["micro_batch"]) == ("kto", "apo-zero-unpaired", 1)
    assert options["seq_len"] == 512


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("loss_type: bco", 'loss_type is "bco"; one of kto, apo_zero_unpaired is needed'),
        ("train_sampling_strategy: random", "TRL takes sequential alone with loss_type kto"),
        ("sync_ref_model: true", "a reference that follows the model"),
    ],
)
def test_what_trl_refuses_and_what_is_not_planned_is_refused(tmp_path: Path, line: str, words: str):
    with pytest.raises(InputError, match=words):
        read(tmp_path, "kto.yaml", f"{OF_LORA}{line}\n")


def test_adapters_under_stage_3_have_reentrant_checkpoints(tmp_path: Path):
    sharded = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'
    (tmp_path / "ds.json").write_text(sharded)
    options = read(tmp_path, "kto.yaml", OF_LORA + "deepspeed: ds.json\n", num_gpus=2).options
    assert options["reentrant_checkpoints"] is True


def test_a_trainer_of_kto_around_a_model_of_unsloths_is_refused(tmp_path: Path):
    loads = (
        'AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")',
        'FastLanguageModel.from_pretrained("unsloth/Qwen2.5-0.5B", max_seq_length=512)',
    )
    imports = ("from transformers import AutoModelForCausalLM", "from unsloth import FastLanguageModel")
    with pytest.raises(InputError, match="KTOTrainer of a model that Unsloth loads is not planned"):
        read(tmp_path, "train.py", PROGRAM, loads, imports)
