"""What a run says of itself: money, float32, and the highest point of its memory."""

from dataclasses import replace

import pytest
import torch

from launch_cases import cpu_plan, gpu_plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Precision
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan_trainer.engines.make import multiplies_in_tf32
from vlmplan_trainer.loop import Position
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.reporting.earlier import Pace
from vlmplan_trainer.reporting.evaluated import Evaluated
from vlmplan_trainer.reporting.report import lines


def figures(plan, position: Position, evaluated: Evaluated | None = None):
    found = lines(plan, Meter(torch.device("cpu")), position, pace=Pace(), evaluated=evaluated)
    return {line.name: line for line in found}


def test_money_so_far_is_planned_and_measured_where_there_is_an_offer():
    plan = gpu_plan(num_gpus=2, num_nodes=3, step_seconds=5.0)
    line = figures(plan, Position(step=7, seconds=77.0))["usd so far"]
    assert line.planned == pytest.approx(plan.offer.usd_per_hour * 3 * 7 * 5 / 3600)
    assert line.measured == pytest.approx(plan.offer.usd_per_hour * 3 * 77 / 3600)
    assert "usd so far" not in figures(replace(plan, offer=None), Position())


def test_the_planned_speed_counts_the_rows_of_both_answers_of_dpo_as_the_measured_one_does():
    plan = gpu_plan(num_gpus=2, num_nodes=3, step_seconds=5.0)
    pairs = replace(plan, recipe=replace(plan.recipe, task=TrainingTask(kind=TaskKind.DPO)))
    num_tokens = plan.samples_per_step * plan.workload.seq_len
    assert figures(plan, Position())["speed"].planned == pytest.approx(num_tokens / 5)
    assert figures(pairs, Position())["speed"].planned == pytest.approx(2 * num_tokens / 5)


@pytest.mark.parametrize("planned", [None, 40.0])
def test_an_evaluation_is_a_figure_of_its_own_planned_where_the_plan_knows_its_seconds(planned):
    plan = gpu_plan(Recipe(zero_stage=2, micro_batch=3, evaluation=Evaluation(batch=2, every=0.25)))
    plan = replace(plan, expected=replace(plan.expected, evaluation_seconds=planned))
    measured = Evaluated(num_samples=9, num_left_out=0, seconds=8.0)
    line = figures(plan, Position(), evaluated=measured)["evaluation"]
    assert (line.unit, line.measured) == ("seconds", 8.0)
    assert line.planned == (None if planned is None else planned / 4)
    assert line.error == (None if planned is None else pytest.approx(0.25))
    assert "evaluation" not in figures(plan, Position())


def test_a_run_that_followed_no_step_has_no_peak_to_report():
    line = figures(cpu_plan(), Position(step=3))["peak allocated"]
    assert (line.measured, line.error) == (None, None)


def test_float32_is_multiplied_in_tf32_where_the_planner_counts_on_it():
    fp32 = Recipe(zero_stage=2, micro_batch=3, precision=Precision.FP32)
    assert multiplies_in_tf32(gpu_plan(fp32))
    assert not multiplies_in_tf32(gpu_plan())
    assert not multiplies_in_tf32(cpu_plan(precision=Precision.FP32))


def steps(meter: Meter, counts: list[int], run) -> None:
    for count in counts:
        meter.start_step()
        with meter.phase("forward"):
            run(count)
        meter.end_step()


def test_the_highest_point_of_the_steps_that_are_followed_is_reported_on_a_cpu():
    meter = Meter(torch.device("cpu"), num_steps=3)
    steps(meter, [10, 30, 20, 50], lambda count: torch.zeros(count, dtype=torch.uint8))
    assert meter.peak_allocated_bytes == 30
    assert meter.bytes_in_progress() is None  # the fourth is not followed


def test_a_gpu_is_followed_to_the_end_since_the_longest_samples_may_come_late(monkeypatch):
    allocated = reserved = 0

    def run(count: int) -> None:
        nonlocal allocated, reserved
        allocated, reserved = count, 2 * count

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - reserved, 100))
    meter = Meter(torch.device("cuda"), num_steps=3)
    steps(meter, [10, 30, 20, 40, 15], run)
    assert (meter.peak_allocated_bytes, meter.peak_reserved_bytes, meter.peak_device_bytes) == (40, 80, 80)
