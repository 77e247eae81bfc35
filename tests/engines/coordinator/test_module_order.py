"""From where on DeepSpeed does not know the order of modules while GRPO trains under stage 3."""

import pytest

from vlmplan.engines.coordinator.module_order import Lost, begun_first, loses_order_at, training_sizes
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, Reference, TaskKind

OFF = Reference.ADAPTER_OFF


def grpo(accum: int, **settings: object) -> Recipe:
    task = TrainingTask(kind=TaskKind.GRPO, **settings)  # type: ignore[arg-type]
    return Recipe(loss=LossKind.TRL, zero_stage=3, method=Method.LORA, grad_accum=accum, task=task)


def test_training_on_samples_as_they_are_goes_by_a_recorded_order():
    recipe = Recipe(zero_stage=3)
    assert loses_order_at(recipe) is Lost.NEVER
    assert training_sizes(recipe) == recipe.zero


@pytest.mark.parametrize("reference", [None, OFF])
def test_an_order_is_recorded_in_the_first_micro_batch_that_knows_none(reference: Reference | None):
    """The reference's forward has left a wrong one to the first micro batch, so there the second one records."""
    needed = 2 if reference is None else 3
    assert loses_order_at(grpo(needed, reference=reference)) is Lost.NEVER
    assert loses_order_at(grpo(needed - 1, reference=reference)) is not Lost.NEVER


def test_one_micro_batch_a_generation_never_prefetches():
    recipe = grpo(1)
    assert loses_order_at(recipe) is Lost.AT_START
    assert training_sizes(recipe).stage3_prefetch_bucket_size == 0
    assert training_sizes(recipe).stage3_max_reuse_distance == 0


def test_an_order_without_adapters_holds_until_the_first_one_runs():
    recipe = grpo(2, reference=OFF)
    assert loses_order_at(recipe) is Lost.AT_ADAPTERS
    assert training_sizes(recipe) == recipe.zero


def test_old_probabilities_leave_an_order_without_a_backward():
    recipe = grpo(1, steps_per_generation=2)
    assert recipe.looks_up_old_probabilities
    assert loses_order_at(recipe) is Lost.AT_BACKWARD


def test_answers_that_are_trained_on_twice_leave_a_recorded_order_to_the_second_time():
    recipe = grpo(1, num_iterations=2)
    assert recipe.looks_up_old_probabilities
    assert loses_order_at(recipe) is Lost.AT_BACKWARD
    assert loses_order_at(grpo(1, num_iterations=3)) is Lost.NEVER


def test_vllm_takes_no_hooks_away():
    assert loses_order_at(grpo(1, generation=Generation.VLLM)) is Lost.NEVER
    assert loses_order_at(grpo(1, generation=Generation.VLLM, reference=OFF)) is Lost.AT_ADAPTERS


@pytest.mark.parametrize("grad_accum", [1, 2, 4])
@pytest.mark.parametrize("on_start", [True, False])
def test_an_order_is_recorded_once_and_a_micro_batch_later_behind_an_evaluation(on_start: bool, grad_accum: int):
    """Which has left one that ends with forward."""
    recipe = Recipe(zero_stage=3, grad_accum=grad_accum, evaluation=Evaluation(batch=1, on_start=on_start))
    lost = [one.lost for of_step in begun_first(recipe) for one in of_step[:grad_accum]]
    recording = [*([Lost.AT_BACKWARD] if on_start else []), Lost.AT_START]
    assert lost[: len(recording)] == recording
    assert set(lost[len(recording) :]) <= {Lost.NEVER}
