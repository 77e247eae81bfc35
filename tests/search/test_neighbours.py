"""The law of the search: nothing next to a plan that fits is noticeably better, what is planned is what an estimate
gives, with the batch that is asked for and nothing that launch refuses, and nothing that an estimate fits is called
impossible."""

import os
from dataclasses import replace

import pytest
from neighbours import Neighbourhood, Search, random_search, wider_search
from recent import recent_search

from planned import decided_fields
from vlmplan.answers.estimate import document
from vlmplan.errors import DoesNotFitError, InputError
from vlmplan.plan.task_problems import setup_problems
from vlmplan.recipe.choices import Precision
from vlmplan.recipe.task_choices import Generation, TaskTrainer
from vlmplan.search import RankedPlan, SearchQuery, recommend
from vlmplan.search.clusters import taken_host_bytes
from vlmplan.search.setups import SetupSpace

FEW = (0, 1, 2, 5, 1158)
"""The last asks for the least memory, where sizes for speed fit too."""
SWEPT_FIRST = 1068
"""It asks for the least memory with the native allocator."""
WIDER_FIRST = 20_097
"""Its samples are in one row, whose attention is slower the more of them there are."""
WIDER_SWEPT_FIRST = 20_040
"""DPO."""
IN_ONE_ROW = {
    "model": "lighton-ocr-1b",
    "seq_len": 512,
    "global_batch": 4 * 16,
    "num_samples": 2000,
    "method": "lora",
    "activation_checkpointing": False,
    "train_vision": False,
}
"""Attention of its vision tower takes the square of a micro batch's images."""
RECENT_FIRST = 108
"""GRPO with --num-iterations."""
NATIVE_FIRST = 71_022
"""It asks for the least memory, and sizes for speed fit by their tensors but not by the native allocator's segments."""
NUM_SEARCHES = 320
"""About 20 minutes of one core; the sweep tries one in STRIDE."""
STRIDE = int(os.environ.get("VLMPLAN_SEARCH_STRIDE", "6"))


def check(search: Search) -> None:
    try:
        asked = search.asked()
        found = recommend(asked)
    except (InputError, DoesNotFitError):
        return  # images that are longer than the sample, a stage that the machine cannot have
    if not found.plans and asks_for_emulated(asked):
        return
    if not found.plans:
        (candidate,) = asked.candidates
        on = replace(candidate.cluster, node=candidate.largest)
        if on.node.host_ram_bytes is None and candidate.offers:  # the search takes what such machines have at the least
            on = replace(on, node=replace(on.node, host_ram_bytes=taken_host_bytes(on.node)))
        batches = SetupSpace(asked.workload, asked.fixed, asked.workload.global_batch or 1).batch_sizes(on.num_gpus)
        fitting = next(
            Neighbourhood(asked.workload, on, decided_fields(asked.fixed), None, asked.made_for).fitting_lightest(
                batches
            ),
            None,
        )
        assert fitting is None, f"{search}: nothing fits, it says, but {fitting} does"
        return
    plan = found.plans[0]
    near = Neighbourhood(asked.workload, plan.estimate.cluster, decided_fields(asked.fixed), plan, asked.made_for)
    own = near.estimate(near.own_fields)
    assert own is not None
    assert document(own) == document(plan.estimate), f"{search}: an estimate gives another plan"
    assert takes_batch_of_user(plan, asked), f"{search}: {plan.estimate.samples_per_step} samples a step are planned"
    assert not launch_problems(plan, asked), f"{search}: launch refuses it: {launch_problems(plan, asked)}"
    better = max(near.better(asked.objective), key=lambda found: found[1], default=None)
    assert better is None, f"{search}: {better} is better"


def takes_batch_of_user(plan: RankedPlan, asked: SearchQuery) -> bool:
    """Whether a step has the samples that are asked for, where all GPUs can share them and nothing else decides."""
    batch, fixed = asked.workload.global_batch, asked.fixed
    is_open = fixed.micro_batch is None and fixed.grad_accum is None and fixed.sequence_parallel is None
    return (
        not is_open
        or batch is None
        or batch % plan.estimate.cluster.num_gpus > 0
        or batch == plan.estimate.samples_per_step
    )


def launch_problems(plan: RankedPlan, asked: SearchQuery) -> list[str]:
    """Why the bundled trainer does not train a plan of preferences or rewards of which the user asks nothing that is
    another trainer's."""
    task = asked.fixed.task
    if task is None or task.trainer is not TaskTrainer.TRL or task.generation is not Generation.TRANSFORMERS:
        return []
    estimate = plan.estimate
    return list(setup_problems(estimate.recipe, task, estimate.cluster.num_gpus))


def asks_for_emulated(asked: SearchQuery) -> bool:
    """Whether bf16 is asked for on a card that emulates it, which estimates plan and no search."""
    has_bf16 = all(one.cluster.node.gpu.supports_bf16 for one in asked.candidates)
    return asked.fixed.precision in (Precision.BF16, Precision.BF16_PURE) and not has_bf16


@pytest.mark.sweep
@pytest.mark.parametrize("seed", FEW)
def test_no_neighbour_of_a_plan_fits_and_is_noticeably_better(seed: int):
    check(random_search(seed))


def test_the_same_of_a_search_with_more_options_pinned():
    check(wider_search(WIDER_FIRST))


@pytest.mark.sweep
def test_the_same_of_rewards_whose_answers_are_trained_on_again():
    check(recent_search(RECENT_FIRST))


@pytest.mark.sweep
def test_the_same_of_the_least_memory_where_sizes_for_speed_leave_the_native_allocator_no_room():
    check(recent_search(NATIVE_FIRST))


def test_images_in_one_row_under_a_mask_are_planned_in_the_fastest_micro_batch():
    asked = Search({**IN_ONE_ROW, "gpu": ("a100-sxm4-80gb:4",), "objective": "time"}).asked()
    plan = recommend(asked).plans[0]
    near = Neighbourhood(asked.workload, plan.estimate.cluster, decided_fields(asked.fixed), plan, asked.made_for)
    seconds: dict[int, float] = {}
    for size in (4, 8, 16):
        found = near.estimate(near.own_fields | {"micro_batch": size, "grad_accum": 16 // size})
        assert found is not None
        assert found.step_seconds is not None
        seconds[size] = found.step_seconds
    assert seconds[8] < seconds[4] < seconds[16]
    assert plan.estimate.recipe.micro_batch == 8


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("seed", [SWEPT_FIRST, *[seed for seed in range(0, NUM_SEARCHES, STRIDE) if seed not in FEW]])
def test_no_neighbour_of_any_plan_fits_and_is_noticeably_better(seed: int):
    check(random_search(seed))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", [WIDER_SWEPT_FIRST, *range(20_000, 20_000 + NUM_SEARCHES // 4, STRIDE)])
def test_the_same_of_any_search_with_more_options_pinned(seed: int):
    check(wider_search(seed))


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(0, NUM_SEARCHES, STRIDE))
def test_the_same_of_any_search_of_tasks_shards_evaluations_and_other_trainers(seed: int):
    check(recent_search(seed))
