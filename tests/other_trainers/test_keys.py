"""Every key of the releases that are read is known, and what a silent file leaves open is the release's own default.

``keys.json`` is made of the releases' sources by ``tests/tools/trainer_keys.py``.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers.axolotl.keys import ABSENT, DROPPED, RENAMED
from vlmplan.other_trainers.evaluated import KEYS as OF_EVALUATION
from vlmplan.other_trainers.hugging_face import OPTIMIZERS, WITHOUT_EFFECT
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.ms_swift.shipped import NAMED_DEEPSPEED
from vlmplan.other_trainers.nemo_automodel.keys import NEMO_AUTOMODEL
from vlmplan.other_trainers.read import settings_of
from vlmplan.other_trainers.readers import READERS
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.scripts import OTHER

KEYS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "keys.json").read_text(encoding="utf-8"))
OF_TRL = {"lora_target_modules": "all-linear", "use_peft": True}
NEEDED = {
    "trl": OF_TRL,
    "trl dpo": OF_TRL,
    "trl reward": OF_TRL | {"lora_task_type": "SEQ_CLS"},
    "trl kto": OF_TRL | {"loss_type": "kto", "per_device_train_batch_size": 2},
    "trl grpo": OF_TRL,
    "llamafactory": {"bf16": True},
    "swift rlhf": {"rlhf_type": "dpo"},
    "axolotl": {"micro_batch_size": 1, "batch_size": 1, "attn_implementation": "flash_attention_2"},
    NEMO_AUTOMODEL: {"peft._target_": "nemo_automodel.components._peft.lora.PeftConfig"},
    "verl": {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
    },
}
AROUND = Surroundings(folder=Path(), num_gpus=1)
SEES, READS = find_model("qwen2.5-vl-3b"), find_model("qwen2.5-0.5b")
OF_TEXT = ("OpenRLHF sft", "OpenRLHF dpo", "OpenRLHF rm")
"""Those that train text alone."""
OF_TRAINER = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
OF_OWN_KEYS = ("axolotl", "verl", "EasyR1", NEMO_AUTOMODEL, *OF_TEXT)
WITH_ARGUMENTS = [trainer for trainer in READERS if trainer not in OF_OWN_KEYS]
"""Those that take every key of ``TrainingArguments``."""


def read(trainer: str, values: dict[str, Any]) -> TrainerConfig:
    of_reader = trainer.removesuffix(" rlhf")
    _, reader = READERS[of_reader]
    return reader(
        settings_of(of_reader, NEEDED.get(trainer, {}) | values, "the file"),
        READS if trainer in OF_TEXT else SEES,
        AROUND,
    )


@pytest.mark.parametrize("trainer", READERS)
def test_every_key_that_the_release_has_is_known(trainer: str):
    unknown: list[str] = []
    for key in {*(OF_TRAINER if trainer in WITH_ARGUMENTS else ()), *KEYS.get(trainer, {})}:
        try:
            read(trainer, {key: "an odd value"})
        except InputError as error:
            told = str(error)
            unknown += [key] if "unknown key" in told or f"{key}: not planned, as what" in told else []
    assert not unknown


def test_arguments_that_axolotl_has_no_key_for_are_dropped_of_its_file_and_those_of_another_name_refused():
    assert OF_TRAINER - KEYS["axolotl"].keys() - RENAMED.keys() - DROPPED == ABSENT
    for key in ABSENT:
        config = read("axolotl", {key: 1})
        assert key in config.idle
        assert f"{key} is no key of axolotl 0.19.0, which drops it without a word" in config.notes
    for key in RENAMED.keys() & OF_TRAINER:
        with pytest.raises(InputError, match=f"unknown key '{key}'"):
            read("axolotl", {key: 1})
    assert set(RENAMED.values()) <= KEYS["axolotl"].keys()


@pytest.mark.parametrize("trainer", WITH_ARGUMENTS)
def test_a_key_that_the_release_does_not_have_is_refused_by_its_name(trainer: str):
    with pytest.raises(
        InputError, match=r"unknown key 'per_device_train_batchsize'; did you mean 'per_device_train_batch_"
    ):
        read(trainer, {"per_device_train_batchsize": 4})


@pytest.mark.parametrize("trainer", KEYS)
def test_what_is_taken_where_the_file_is_silent_is_the_releases_default(trainer: str):
    defaults = {setting.key: setting.value for setting in read(trainer, {}).defaults}
    release = {key: default for key, default in KEYS[trainer].items() if default is not None}
    shared = defaults.keys() & release.keys() - {"target_modules", "lora_target"}
    assert len(shared) > (0 if trainer == "swift rlhf" else 8)  # whose keys here are those that swift sft has not
    for key in shared:
        expected = release[key]
        text = (
            str(expected).lower()
            if isinstance(expected, bool)
            else f"{expected:g}"
            if isinstance(expected, float)
            else expected
        )
        assert defaults[key] == str(text).casefold() or defaults[key] == str(text), key


def test_the_plain_trainers_defaults_are_those_of_transformers():
    own = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    defaults = {setting.key: setting.value for setting in read(OTHER, {}).defaults}
    for key in ("per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "bf16", "fp16"):
        expected = own[key]
        assert defaults[key] == (str(expected).lower() if isinstance(expected, bool) else f"{expected:g}"), key
    assert defaults["optim"] == getattr(own["optim"], "value", own["optim"])
    assert defaults["gradient_checkpointing"] == "false"


def test_no_key_is_both_without_effect_and_of_evaluation():
    assert not WITHOUT_EFFECT & OF_EVALUATION


def test_optimizers_are_names_that_transformers_knows():
    from transformers.training_args import OptimizerNames

    assert OPTIMIZERS.keys() <= {name.value for name in OptimizerNames}


def test_the_named_deepspeed_files_have_a_stage_each():
    stages = {name: section["zero_optimization"]["stage"] for name, section in NAMED_DEEPSPEED.items()}
    assert stages == {"zero0": 0, "zero1": 1, "zero2": 2, "zero2_offload": 2, "zero3": 3, "zero3_offload": 3}
