"""Where the answers of a step take more than there is, fewer are generated at once; nothing that fits is called
impossible for them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_calls import call
from vlmplan.errors import InputError
from vlmplan.estimation import fewer_at_once, with_answers_of
from vlmplan.memory.device import Verdict
from vlmplan.recipe import Recipe
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import TaskKind
from vlmplan.request import parse
from vlmplan.requested import requested_estimate

GROUPS = ("--task", "grpo", "--num-generations", "8", "--seq-len", "2048", "--max-completion-tokens", "64")
ON_SMALL_CARDS = ("--model", "qwen3-4b", "--gpu", "v100-sxm2-16gb:2", *GROUPS)


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 8), st.integers(2, 16))
def test_fewer_answers_are_whole_groups_of_parts_of_a_step(micro_batch: int, accum: int, gpus: int, group: int):
    task = TrainingTask(kind=TaskKind.GRPO, num_generations=group)
    recipe, seen = Recipe(micro_batch=micro_batch, grad_accum=accum, task=task), [accum]
    while (steps := fewer_at_once(recipe, gpus)) is not None:
        assert steps < seen[-1]
        assert accum % steps == 0
        assert micro_batch * gpus * steps % group == 0
        seen.append(steps)
        recipe = with_answers_of(recipe, steps)
    wholes = [one for one in range(1, accum) if accum % one == 0 and micro_batch * gpus * one % group == 0]
    assert seen[1:] == wholes[::-1]


@pytest.mark.sweep
def test_a_search_generates_in_more_goes_where_one_is_too_large_and_estimate_agrees():
    plan, *_ = call("recommend", *ON_SMALL_CARDS, "--method", "qlora", "--json").document["plans"]
    recipe = plan["recipe"]
    assert recipe["task"]["steps_per_generation"] < recipe["grad_accum"]
    found = call(
        *("estimate", *ON_SMALL_CARDS, "--method", "qlora", "--zero-stage", str(recipe["zero_stage"])),
        *("--micro-batch", str(recipe["micro_batch"]), "--grad-accum", str(recipe["grad_accum"])),
        *("--steps-per-generation", str(recipe["task"]["steps_per_generation"]), "--expandable-segments"),
        *("--activation-checkpointing" if recipe["activation_checkpointing"] else "--no-activation-checkpointing",),
        *("--offload-optimizer", recipe["offload_optimizer"], "--json"),
    ).document
    assert found["peak_allocated_bytes"] == plan["estimate"]["peak_allocated_bytes"]
    assert found["step_seconds"] == plan["estimate"]["step_seconds"]
    assert found["verdict"] == "fits"


def test_where_answers_of_a_step_do_not_fit_fewer_at_once_are_proposed():
    words = ("--method", "qlora", "--zero-stage", "2", "--micro-batch", "1", "--grad-accum", "8")
    told = call("estimate", *ON_SMALL_CARDS, *words)
    assert told.code == 3
    assert "4 answers generated at once" in told.out
    assert "--steps-per-generation 4" in told.out


FEW = ("--seq-len", "1024", "--num-generations", "4", "--generation", "vllm", "--method", "full", "--task", "grpo")


@pytest.mark.parametrize("memory", [{}, {"vllm_memory_utilization": 0.9}])
def test_vllm_that_is_larger_than_a_gpu_does_not_fit_and_no_number_above_1_is_asked_for(memory: dict[str, Any]):
    asked = {"model": "qwen2.5-7b", "gpu": ("rtx-3080-10gb:2",), "task": "grpo", "generation": "vllm", **memory}
    if not memory:
        found, _ = requested_estimate(parse(asked), ())
        assert found.verdict is Verdict.DOES_NOT_FIT
        return
    with pytest.raises(InputError, match=r"take 15\.24 GiB; no GPU of this kind has as much$"):
        requested_estimate(parse(asked), ())


@pytest.mark.sweep
def test_vllm_that_is_too_large_for_a_gpu_is_shared():
    told = call("estimate", "--model", "qwen2.5-vl-3b", "--gpu", "a100-sxm4-40gb:2", *FEW, "--grad-accum", "4")
    assert told.code == 3
    assert "shared by 2 GPUs" in told.out
    assert "--vllm-tensor-parallel 2" in told.out


@pytest.mark.sweep
def test_vllm_that_leaves_the_trainer_no_room_sleeps():
    told = call("estimate", "--model", "qwen2.5-vl-7b", "--gpu", "h100-sxm:2", *FEW)
    assert told.code == 3
    way = " ".join(told.out.split("to fit: ")[1].replace("\\\n", " ").split())
    assert "vLLM asleep in training (level 2)" in " ".join(told.out.split())
    assert "--no-expandable-segments" in way
    words = way.split(" Cheapest")[0].split()
    assert "--vllm-sleep-level" in words
    assert call(*words[1:]).code == 0


@pytest.mark.long
@pytest.mark.sweep
def test_a_search_that_finds_nothing_says_that_vllm_can_be_shared():
    words = ("--model", "qwen2.5-14b", "--gpu", "rtx-5090:2", *FEW, "--host-ram", "1000")
    told = call("recommend", *words)
    assert told.code == 3
    assert "shared by 2 GPUs" in told.out
    assert call("recommend", *words, "--vllm-tensor-parallel", "2").code == 0


@pytest.mark.parametrize("sizes", [(), ("--micro-batch", "3"), ("--grad-accum", "5"), ("--global-batch", "32")])
def test_a_search_plans_whole_groups_of_answers_on_a_number_of_gpus_that_divides_no_group(sizes):
    words = ("--model", "qwen2.5-0.5b", "--gpu", "a100-sxm4-80gb:3", "--task", "grpo", *sizes)
    plan, *_ = call("recommend", *words, "--method", "lora", "--json").document["plans"]
    assert plan["recipe"]["micro_batch"] * plan["recipe"]["grad_accum"] * 3 % 8 == 0


def test_a_search_refuses_sizes_that_make_parts_of_groups_as_an_estimate_does():
    words = ("--model", "qwen2.5-0.5b", "--gpu", "a100-sxm4-80gb:2", "--task", "grpo", "--method", "lora")
    sizes = ("--micro-batch", "3", "--grad-accum", "3")
    told = [call(command, *words, *sizes).err for command in ("estimate", "recommend")]
    assert told[0] == told[1]
    assert "does not divide the 18 answers" in told[0]


def test_a_search_of_fixed_sizes_asks_them_alone_for_whole_groups():
    sizes = ("--micro-batch", "6", "--grad-accum", "1", "--num-generations", "6")
    words = ("--model", "qwen2.5-0.5b", "--gpu", "a100-sxm4-80gb:1", "--task", "grpo", "--method", "lora", *sizes)
    plan, *_ = call("recommend", *words, "--json").document["plans"]
    assert (plan["recipe"]["micro_batch"], plan["recipe"]["grad_accum"]) == (6, 1)
