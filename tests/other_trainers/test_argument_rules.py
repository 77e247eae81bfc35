"""What ``TrainingArguments`` refuse as they are made is refused in one sentence, and what they take is read: by random
values beside each other, put to transformers' own class."""

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from vlmplan.errors import InputError
from vlmplan.models import find_model
from vlmplan.other_trainers.argument_kinds import OF_TRAINING_ARGUMENTS
from vlmplan.other_trainers.argument_rules import NEVER_NULL, OF_ACCELERATOR
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.read import settings_of
from vlmplan.other_trainers.readers import READERS
from vlmplan.other_trainers.record import TrainerConfig
from vlmplan.other_trainers.scripts import OTHER
from vlmplan.run.saving import Interval

pytest.importorskip("transformers")
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

from tools.argument_kinds import OUTPUT, grouped, kinds

VALUES: dict[str, tuple[Any, ...]] = {
    "logging_strategy": ("no", "steps", "epoch"),
    "logging_steps": (0, 0.5, 1, 1.5, 20, -1),
    "eval_strategy": ("no", "steps", "epoch"),
    "eval_steps": (0, 0.1, 0.25, 3, 2.5, 100),
    "save_strategy": ("no", "steps", "epoch", "best"),
    "save_steps": (-1, 0.5, 1.5, 10, 300),
    "load_best_model_at_end": (True, False),
    "lr_scheduler_type": ("linear", "reduce_lr_on_plateau", "greedy"),
    "fp16_full_eval": (True, False),
    "bf16_full_eval": (True, False),
    "dataloader_num_workers": (0, 2),
    "dataloader_prefetch_factor": (None, 2),
    "torch_empty_cache_steps": (None, -1, 0, 3),
    "warmup_steps": (-1, 0, 0.5, 10),
    "debug": ("", "underflow_overflow", "underflow"),
    "accelerator_config": (None, {}, {"even_batches": False}, {"even": False}),
}
READ = find_model("qwen2.5-0.5b")


def read(values: dict[str, Any], trainer: str = OTHER) -> TrainerConfig:
    _, reader = READERS[trainer]
    return reader(settings_of(trainer, values, "the file"), READ, Surroundings(folder=None, num_gpus=1))


def refusal(values: dict[str, Any], trainer: str = OTHER) -> str:
    try:
        read(values, trainer)
    except InputError as error:
        return str(error)
    return ""


def is_made(values: dict[str, Any]) -> bool:
    try:
        TrainingArguments(output_dir="unused", use_cpu=True, **values)
    except (TypeError, ValueError):
        return False
    return True


def test_random_values_beside_each_other_are_refused_where_the_class_refuses_them_and_nowhere_else():
    chance, seen = Random(3), {True: 0, False: 0}
    for _ in range(60):
        keys = chance.sample(list(VALUES), chance.randint(1, 4))
        values = {key: chance.choice(VALUES[key]) for key in keys}
        values = {key: value for key, value in values.items() if value is not None}
        made = is_made(values)
        seen[made] += 1
        assert (not refusal(values)) is made, (values, refusal(values))
    assert min(seen.values()) > 10


def test_null_is_refused_for_the_keys_of_which_the_class_takes_none():
    names = [field.name for field in dataclasses.fields(TrainingArguments) if field.init and field.name != "output_dir"]
    refused = {name for name in names if name != "use_cpu" and not is_made({name: None})}
    assert refused | {"ddp_timeout"} == {*NEVER_NULL}  # of which several processes alone make something
    for name in NEVER_NULL:
        assert f"{name} is null; TrainingArguments takes no null for it" in refusal({name: None})


def test_keys_of_accelerators_configuration_are_those_of_its_class():
    assert {field.name for field in dataclasses.fields(AcceleratorConfig)} == {"split_batches", *OF_ACCELERATOR}
    assert "accelerator_config.split_batches is true; it splits" in refusal(
        {"accelerator_config": {"split_batches": True}}
    )


def test_the_kinds_of_arguments_are_those_of_the_class():
    kept = json.loads(Path(OUTPUT).read_text(encoding="utf-8"))[OF_TRAINING_ARGUMENTS]
    assert kept == grouped(kinds([TrainingArguments]))


@pytest.mark.parametrize(
    ("trainer", "key", "value", "told"),
    [
        (OTHER, "do_train", "maybe", "true or false is needed"),
        (OTHER, "ddp_bucket_cap_mb", 2.5, "a whole number is needed"),
        ("trl", "shuffle_dataset", "maybe", "true or false is needed"),
        ("trl dpo", "label_smoothing", "much", "a number is needed"),
        ("trl dpo", "loss_weights", [1.0, 2.0], "1 weight is needed"),
        ("trl grpo", "top_k", "many", "a whole number is needed"),
        ("trl grpo", "reward_weights", ["a"], "a list of numbers is needed"),
        ("trl grpo", "log_completions_hub_repo", "me/x", "log_completions: true is needed with it"),
        (
            "trl grpo",
            "vllm_importance_sampling_clip_min",
            3,
            "less than vllm_importance_sampling_clip_max, 3, is needed",
        ),
        ("trl", "bnb_4bit_quant_type", "int4", "one of fp4, nf4 is needed"),
    ],
)
def test_a_value_of_another_kind_is_refused_though_the_key_has_no_effect(trainer: str, key: str, value: Any, told: str):
    sentence = refusal({key: value}, trainer)
    assert f"the file: {key} is " in sentence
    assert told in sentence


def test_sgd_is_planned_with_a_momentum_and_without_weight_decay():
    with_momentum = {"optim": "sgd", "optim_args": "momentum=0.9, nesterov=true"}
    assert read(with_momentum).options["optimizer"] == "sgd"
    assert "without a momentum it has no state" in refusal({"optim": "sgd"})
    assert "without a momentum it has no state" in refusal({"optim": "sgd", "optim_args": "momentum=0"})
    assert "its update copies all gradients" in refusal(with_momentum | {"weight_decay": 0.1})
    assert "text of names and values is needed" in refusal({"optim_args": "momentum"})


def test_steps_below_one_save_nothing_and_a_norm_below_zero_clips_nothing():
    assert read({"save_steps": -1}).saving.interval is Interval.NEVER
    assert read({"max_grad_norm": -1}).gradient_clipping == 0
    assert "num_samples" not in read({"max_steps": -5}).options
