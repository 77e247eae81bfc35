"""An estimator is asked for many recipes: what it says of one does not depend on what it was asked before."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from planned import cluster, of_few_layers, workload
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind

MODEL = of_few_layers("qwen2.5-0.5b")
ON = cluster("a100-sxm4-80gb", 4)
GRPO = TrainingTask(kind=TaskKind.GRPO, num_generations=4)
LOSSES = (LossKind.FULL, LossKind.CHUNKED, LossKind.TRL, LossKind.MODEL)
ENGINES = ({"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3}, {"zero_stage": None, "fsdp": True})


def recipes(engine: dict[str, Any], method: Method, task: TrainingTask | None) -> list[Recipe]:
    base = Recipe(method=method, task=task, **engine)
    found = [base.with_changes(loss=loss, grad_accum=accum) for loss, accum in product(LOSSES, (1, 4))]
    if task is not None:
        in_turn = replace(task, steps_per_generation=1)
        found += [one.with_changes(task=in_turn) for one in found]
    return found


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize(("engine", "task"), [*((one, None) for one in ENGINES), ({"zero_stage": 3}, GRPO)])
def test_a_timeline_is_the_same_whatever_the_estimator_was_asked_before(engine, task, method):
    asked = recipes(engine, method, task)
    random.Random(3).shuffle(asked)
    samples = workload(MODEL)
    shared = Estimator(samples, asked[0])
    for recipe in asked:
        assert shared.timeline(recipe, ON) == Estimator(samples, recipe).timeline(recipe, ON), recipe
