"""Which settings of a plan may be others when its run goes on."""

from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from launch_cases import gpu_plan
from vlmplan.launch.plan_changes import PARTS, STAGES_ALIKE, plan_changes, plan_problems
from vlmplan.plan import Plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.evaluation import Evaluation, Kept
from vlmplan.recipe.settings import CHANGEABLE_FIELDS
from vlmplan.recipe.switches import option_text
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.recipe.zero import ZeroSettings

FOLDER = Path("runs/1")
BEFORE = Recipe(zero_stage=2, micro_batch=3)


def other(value: Any) -> Any:
    """A value of the same kind that is not ``value``."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, Enum):
        return next(choice for choice in type(value) if choice is not value)
    if isinstance(value, (int, float)):
        return 2 * value
    if isinstance(value, ZeroSettings):
        return replace(value, reduce_bucket_size=7)
    return "/other"


OTHERS: dict[str, Any] = {
    "zero_stage": 3,
    "dp_shard_size": 2,
    "lora_alpha": 7,
    "lora_dropout": 0.125,
    "lora_init": "olora",
    "loraplus_lr_ratio": 4.0,
}
OTHERS |= {"evaluation": Evaluation(batch=7), "task": TrainingTask(kind=TaskKind.DPO)}
"""Of fields whose own value says nothing of what others may be."""


def with_recipe(plan: Plan, **changes: Any) -> Plan:
    """``plan`` with another recipe, whose ds_config is not looked at here."""
    made = object.__new__(Plan)
    for item in fields(Plan):
        object.__setattr__(made, item.name, getattr(plan, item.name))
    object.__setattr__(made, "recipe", plan.recipe.with_changes(**changes))
    return made


@pytest.mark.parametrize("name", [item.name for item in fields(Recipe)])
def test_every_setting_of_the_recipe_is_refused_with_both_values_or_said(name: str):
    before = gpu_plan(BEFORE.with_changes(zero_stage=0) if name == "deepspeed_adam" else BEFORE)
    value = OTHERS.get(name) or other(getattr(before.recipe, name))
    after = with_recipe(before, **{name: value})
    problems, changes = plan_problems(before, after, FOLDER, is_begun=False), plan_changes(before, after)
    assert bool(problems) is (name not in CHANGEABLE_FIELDS)
    if name in PARTS:
        assert {"evaluation": "--eval-batch 7", "task": "--task dpo"}[name] in problems[0]
        assert PARTS[name][1] in problems[0]
    elif name != "zero":
        sentence = (problems or changes)[0]
        for plan in (before, after):
            value = plan.recipe.as_json()[name]
            said = option_text(name, "none" if value is None else value)
            assert (f"gradient_clipping {value}" if name == "gradient_clipping" else said) in sentence
    assert len(problems or changes) == 1


@pytest.mark.parametrize("stages", [(1, 2), (2, 1), (2, 3), (3, 2), (0, 1), (None, 0)])
def test_only_stages_that_read_each_others_checkpoints_take_each_others_place(stages: tuple[int | None, int | None]):
    before, after = (with_recipe(gpu_plan(BEFORE), zero_stage=stage) for stage in stages)
    assert bool(plan_problems(before, after, FOLDER)) is (set(stages) != STAGES_ALIKE)


@pytest.mark.parametrize(("name", "value"), [("seq_len", 2048), ("images_per_sample", 7), ("image_width", 777)])
def test_what_a_sample_becomes_stays(name: str, value: int):
    before = gpu_plan(BEFORE)
    before = replace(before, workload=replace(before.workload, images_per_sample=1))
    after = replace(before, workload=replace(before.workload, **{name: value}))
    (problem,) = plan_problems(before, after, FOLDER)
    assert str(value) in problem


def test_more_epochs_are_said_and_more_samples_a_step_refused_once_steps_are_counted():
    before = gpu_plan(BEFORE)
    longer = replace(before, workload=replace(before.workload, epochs=5.0))
    assert plan_problems(before, longer, FOLDER) == []
    (change,) = plan_changes(before, longer)
    assert change.startswith(f"--epochs 5.0 from here on; it was --epochs {before.workload.epochs}; the schedule")
    wider = gpu_plan(BEFORE, num_gpus=4)
    (problem,) = plan_problems(before, wider, FOLDER)
    assert "samples a step 6" in problem
    assert "samples a step 12" in problem
    assert plan_problems(before, wider, FOLDER, is_begun=False) == []


def test_what_the_best_evaluation_decides_may_change_and_nothing_else_of_it():
    before = gpu_plan(Recipe(zero_stage=2, evaluation=Evaluation(batch=3, early_stopping_patience=2)))
    more = with_recipe(before, evaluation=Evaluation(batch=3, early_stopping_patience=5, load_best_model_at_end=True))
    assert plan_problems(before, more, FOLDER) == []
    [sentence] = plan_changes(before, more)
    assert sentence.startswith(
        "--early-stopping-patience 5 --load-best-model-at-end from here on; it was --early-stopp"
    )
    less = with_recipe(before, evaluation=Evaluation(batch=3, early_stopping_patience=2, early_stopping_threshold=0.1))
    assert plan_problems(before, less, FOLDER) == []
    [sentence] = plan_changes(before, less)
    assert sentence.startswith("--early-stopping-threshold 0.1 from here on")
    other = with_recipe(before, evaluation=Evaluation(batch=4, early_stopping_patience=5))
    [problem] = plan_problems(before, other, FOLDER)
    assert "--eval-batch 3, which" in problem


def test_of_an_evaluation_only_the_options_that_differ_are_said():
    before = gpu_plan(Recipe(zero_stage=2, micro_batch=3, evaluation=Evaluation(batch=3, samples=50)))
    after = with_recipe(before, evaluation=Evaluation(batch=3, samples=70, kept=Kept.LOGITS, computes_loss=False))
    (problem,) = plan_problems(before, after, FOLDER)
    assert "with --eval-samples 50 --eval-keeps loss --eval-loss," in problem
    assert "with --eval-samples 70 --eval-keeps logits no --eval-loss;" in problem
