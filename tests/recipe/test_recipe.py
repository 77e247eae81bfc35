"""A recipe's fields by what depends on them, as caches ask for them."""

from dataclasses import fields, replace

import pytest

from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AdapterDtype, Method, Offload
from vlmplan.recipe.settings import ENGINE_FIELDS, GROUPS, MODEL_FIELDS
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.units import DType

BASE = Recipe(zero_stage=3, method=Method.LORA, adapter_dtype=AdapterDtype.MODEL)
OTHERS = {bool: lambda value: not value, int: lambda value: value + 1, float: lambda value: value + 0.5}
DPO, REWARD = (TrainingTask(kind=kind) for kind in (TaskKind.DPO, TaskKind.REWARD))
OPEN = {"lora_alpha": 8, "loraplus_lr_ratio": 16.0, "lora_init": "pissa", "dp_shard_size": 2, "task": DPO}
"""Values of fields that are open, or text of few kinds."""


def test_every_field_is_in_exactly_one_group():
    names = [name for group in GROUPS for name in group]
    assert sorted(names) == sorted(field.name for field in fields(Recipe))


def changed(name: str) -> Recipe:
    """``BASE`` with another value of one field."""
    value = getattr(BASE, name)
    if isinstance(value, ZeroSettings):
        return BASE.with_changes(zero=replace(value, stage3_prefetch_bucket_size=7))
    if hasattr(type(value), "__members__"):
        return BASE.with_changes(**{name: next(one for one in type(value) if one is not value)})
    if value is None or isinstance(value, str):
        return BASE.with_changes(**{name: OPEN.get(name, "/drive")})
    return BASE.with_changes(**{name: OTHERS[type(value)](value) if name != "zero_stage" else 2})


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_a_key_changes_with_the_fields_of_its_group_alone(name: str):
    base = BASE.with_changes(zero_stage=0) if name == "deepspeed_adam" else BASE  # elsewhere it is always off
    other = changed(name) if base is BASE else base.with_changes(deepspeed_adam=True)
    assert other != base
    assert (other.engine_key != base.engine_key) is (name in ENGINE_FIELDS)
    assert (other.model_key != base.model_key) is (name in MODEL_FIELDS)


def test_sizes_that_a_stage_does_not_read_are_no_part_of_its_key():
    one, other = (Recipe(zero_stage=0, zero=ZeroSettings(reduce_bucket_size=size)) for size in (10**6, 10**7))
    assert one.engine_key == other.engine_key
    assert one.with_changes(zero_stage=2).engine_key != other.with_changes(zero_stage=2).engine_key


def test_an_engine_without_deepspeed_prepares_another_model():
    assert BASE.with_changes(zero_stage=None).model_key != BASE.model_key
    assert BASE.with_changes(offload_params=Offload.CPU).model_key == BASE.model_key


def test_a_model_that_scores_is_another_than_one_that_writes():
    assert BASE.with_changes(task=DPO).model_key == BASE.model_key
    assert BASE.with_changes(task=REWARD).model_key != BASE.model_key


def test_adapters_that_zero3_keeps_wide_make_another_model():
    lora = BASE.with_changes(zero_stage=2, adapter_dtype=AdapterDtype.FLOAT32)
    wide = lora.with_changes(zero_stage=3)
    assert (lora.trained_dtype, wide.trained_dtype) == (DType.BFLOAT16, DType.FLOAT32)
    assert lora.model_key != wide.model_key
