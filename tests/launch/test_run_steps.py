"""The steps that a plan's run does are those that the trainer does on that many samples."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch_cases import cpu_plan
from vlmplan.launch.run_steps import planned_run_steps, sft_steps, whole_run_steps
from vlmplan.plan import Plan
from vlmplan.recipe.choices import Batching
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.run.training import TrainerOptions
from vlmplan.sampler import Shares

OPTIONS = TrainerOptions(output_dir=Path("out"), dummy_data=1)


def plan_of(
    num_samples: int, *, epochs: float = 1.0, micro_batch: int = 1, grad_accum: int = 1, **more: object
) -> Plan:
    plan = cpu_plan(micro_batch=micro_batch, grad_accum=grad_accum, **more)
    return replace(plan, workload=replace(plan.workload, num_samples=num_samples, epochs=epochs))


@given(
    num_samples=st.integers(1, 300),
    epochs=st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0]),
    micro_batch=st.integers(1, 4),
    grad_accum=st.integers(1, 5),
)
def test_steps_are_whole_ones_of_each_epoch(num_samples, epochs, micro_batch, grad_accum):
    plan = plan_of(num_samples, epochs=epochs, micro_batch=micro_batch, grad_accum=grad_accum)
    shares = Shares(micro_batch=micro_batch, num_ranks=plan.hardware.num_gpus, rank=0, grad_accum=grad_accum)
    expected = sft_steps(plan, shares.num_micro_batches(num_samples))
    assert planned_run_steps(plan, OPTIONS) == expected
    assert planned_run_steps(plan, replace(OPTIONS, max_steps=2)) == min(2, expected)


@pytest.mark.parametrize(("num_samples", "epochs", "steps"), [(19, 1, 9), (19, 3, 27), (19, 0.5, 4), (1, 1, 1)])
def test_what_fills_no_step_waits_for_another_epoch(num_samples, epochs, steps):
    num_ranks = cpu_plan().hardware.num_gpus
    plan = plan_of(num_samples * num_ranks, epochs=epochs, grad_accum=2)
    assert planned_run_steps(plan, OPTIONS) == steps


@pytest.mark.parametrize(("options", "steps", "evaluations"), [({}, 15, 3), ({"max_steps": 10}, 10, 2)])
def test_a_task_that_makes_a_step_of_each_epochs_rest_evaluates_as_often_as_it_has_epochs(options, steps, evaluations):
    task, evaluation = TrainingTask(kind=TaskKind.DPO), Evaluation(batch=1)
    plan = plan_of(17 * cpu_plan().hardware.num_gpus, epochs=3.0, grad_accum=4, task=task, evaluation=evaluation)
    plan = replace(plan, expected=replace(plan.expected, num_steps=13))
    num_steps = planned_run_steps(plan, replace(OPTIONS, **options))
    assert num_steps == steps
    assert plan.num_evaluations_in(num_steps, whole_run_steps(plan)) == evaluations


def test_rows_that_are_packed_are_as_many_as_is_expected():
    plan = plan_of(19, batching=Batching.PACKED)
    assert planned_run_steps(plan, OPTIONS) == plan.expected.num_steps
