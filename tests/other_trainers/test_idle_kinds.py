"""Values of keys without effect on a plan are of the kinds that transformers' own arguments have."""

import dataclasses
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from vlmplan.errors import InputError
from vlmplan.other_trainers.hugging_face import WITHOUT_EFFECT
from vlmplan.other_trainers.idle_kinds import BETAS, CHOICES, FLAGS, NUMBERS, SCHEDULERS, STRATEGIES, WHOLE
from vlmplan.other_trainers.meaning import Surroundings
from vlmplan.other_trainers.read import settings_of
from vlmplan.other_trainers.readers import READERS

pytest.importorskip("transformers")
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SchedulerType

FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments) if field.name in WITHOUT_EFFECT}
OLDER = {"warmup_ratio"}
"""Of releases before transformers 5."""
READ_BEFORE = {"do_train"}


def of_kind(kind: type) -> set[str]:
    """The arguments that are of ``kind``, or None."""
    hints, found = get_type_hints(TrainingArguments), set[str]()
    for name in FIELDS:
        hint = hints[name]
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if {*members} - {type(None)} == {kind}:
            found.add(name)
    return found


def test_kinds_are_those_of_transformers_arguments():
    assert {*NUMBERS, *BETAS} - OLDER == of_kind(float)
    assert {*WHOLE} == of_kind(int)
    assert {*FLAGS} == of_kind(bool) - READ_BEFORE


def test_choices_are_those_of_transformers_arguments():
    named = {"logging_strategy": IntervalStrategy, "hub_strategy": HubStrategy}
    choices = {name: list(field.metadata["choices"]) for name, field in FIELDS.items() if "choices" in field.metadata}
    choices |= {name: [one.value for one in kind] for name, kind in named.items()}
    assert {name: list(allowed) for name, allowed in CHOICES.items()} == choices
    assert list(SCHEDULERS) == [one.value for one in SchedulerType]
    assert list(STRATEGIES["eval_strategy"]) == [one.value for one in IntervalStrategy]


def mistakes(trainer: str, **values: Any) -> str:
    _, read = READERS[trainer]
    needed = {"micro_batch_size": 1, "batch_size": 1} if trainer == "axolotl" else {"bf16": True}
    needed |= {"attn_implementation": "flash_attention_2"} if trainer == "axolotl" else {}
    try:
        read(settings_of(trainer, needed | values, "the file"), None, Surroundings(folder=None, num_gpus=1))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("trainer", ["trl", "llamafactory", "swift", "axolotl"])
def test_a_value_that_no_run_begins_with_is_told_with_what_is_allowed(trainer: str):
    scheduler = "lr_scheduler" if trainer == "axolotl" else "lr_scheduler_type"
    sentence = mistakes(trainer, learning_rate="fast", weight_decay=-0.1, seed=2.5, tf32=3, **{scheduler: "cosin"})
    assert sentence.startswith("the file has 5 mistakes: ")
    for words in (
        'learning_rate is "fast"; a number of 0 or more is needed',
        "weight_decay is -0.1; a number of 0 or more is needed",
        "seed is 2.5; a whole number is needed",
        "tf32 is 3; true or false is needed",
        f'{scheduler} is "cosin"; one of linear, cosine, ',
    ):
        assert words in sentence


def test_moments_that_no_optimizer_is_built_with_are_told():
    for beta in (1.0, -0.1, "1"):
        assert "adam_beta1 is " in mistakes("trl", adam_beta1=beta)
    sentence = mistakes("trl", adam_beta2=1.0, adam_epsilon=-1e-8)
    assert "adam_beta2 is 1.0; a number of 0 or more and below 1 is needed" in sentence
    assert "adam_epsilon is -1e-08; a number of 0 or more is needed" in sentence
    assert not mistakes("trl", adam_beta1=0, adam_beta2="0.999")


def test_numbers_in_text_and_schedulers_of_a_trainer_s_own_are_taken():
    assert not mistakes("trl", learning_rate="1e-4", warmup_steps="0.1", seed="7", tf32="yes", logging_strategy="no")
    assert not mistakes("axolotl", lr_scheduler="rex")
    assert 'lr_scheduler_type is "rex"' in mistakes("trl", lr_scheduler_type="rex")


@pytest.mark.parametrize("trainer", ["trl", "llamafactory", "swift"])
def test_an_evaluation_at_times_that_there_are_not_is_refused(trainer: str):
    assert 'eval_strategy is "always"; one of no, steps, epoch is needed' in mistakes(trainer, eval_strategy="always")
    for said in ("no", "epoch", "steps"):
        assert "eval_strategy is" not in mistakes(trainer, eval_strategy=said)
    told = "eval_strategy is false; one of no, steps, epoch is needed; YAML takes no without quotation marks for false"
    assert told in mistakes(trainer, eval_strategy=False)
    assert "YAML takes no without quotation marks for false" in mistakes(trainer, save_strategy=False)
