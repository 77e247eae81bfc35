"""Money and float32 in what a run says of itself."""

from dataclasses import replace

import pytest
import torch

from launch_cases import cpu_plan, gpu_plan
from vlmplan.recipe import Precision, Recipe
from vlmplan_trainer.engines.make import multiplies_in_tf32
from vlmplan_trainer.loop import Position
from vlmplan_trainer.measure import Meter
from vlmplan_trainer.report import lines


def figures(plan, position: Position):
    meter = Meter(torch.device("cpu"))
    return {line.name: line for line in lines(plan, meter, position, step_seconds=None, tokens_per_second=None)}


def test_money_so_far_is_planned_and_measured_where_there_is_an_offer():
    plan = gpu_plan(num_gpus=2, num_nodes=3, step_seconds=5.0)
    line = figures(plan, Position(step=7, seconds=77.0))["usd so far"]
    assert line.planned == pytest.approx(plan.offer.usd_per_hour * 3 * 7 * 5 / 3600)
    assert line.measured == pytest.approx(plan.offer.usd_per_hour * 3 * 77 / 3600)
    assert "usd so far" not in figures(replace(plan, offer=None), Position())


def test_float32_is_multiplied_in_tf32_where_the_planner_counts_on_it():
    fp32 = Recipe(zero_stage=2, micro_batch=3, precision=Precision.FP32)
    assert multiplies_in_tf32(gpu_plan(fp32))
    assert not multiplies_in_tf32(gpu_plan())
    assert not multiplies_in_tf32(cpu_plan(precision=Precision.FP32))
