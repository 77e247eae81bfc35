"""What is trained for: values, and what of them is asked for by options."""

import pytest
from hypothesis import given

from recipe_cases import TASKS
from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject
from vlmplan.files.record_json import record_json
from vlmplan.other_trainers.writing import Tool
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, IdleOffload, KTOLoss, Reference, TaskKind, TaskTrainer
from vlmplan.recipe.task_json import task_from_json
from vlmplan.request import TaskRequest, parse
from vlmplan.requested import requested_estimate


@given(task=TASKS)
def test_a_task_is_read_back_from_its_json(task: TrainingTask):
    assert task_from_json(JsonObject(record_json(task), source="task")) == task


def test_what_a_task_asks_for_makes_the_same_task():
    for task in (
        TrainingTask(kind=TaskKind.DPO, reference=Reference.PRECOMPUTED, completion_tokens=77),
        TrainingTask(kind=TaskKind.DPO, reentrant_checkpoints=True),
        TrainingTask(kind=TaskKind.REWARD, reentrant_checkpoints=True),
        TrainingTask(kind=TaskKind.DPO, disables_dropout=False),
        TrainingTask(kind=TaskKind.KTO, router_loss=False),
        TrainingTask(kind=TaskKind.GRPO, disables_dropout=True),
        TrainingTask(kind=TaskKind.KTO, kto_loss=KTOLoss.APO_ZERO, completion_tokens=9),
        TrainingTask(kind=TaskKind.GRPO, num_generations=4, steps_per_generation=3, reward_params=7 * 10**9),
        TrainingTask(kind=TaskKind.GRPO, generation=Generation.VLLM, vllm_memory=0.55, vllm_sleep_level=2),
        TrainingTask(kind=TaskKind.GRPO, trainer=TaskTrainer.VERL, idle_offload=IdleOffload.ALL, scoring_batch=3),
    ):
        assert TaskRequest.of(task).task() == task
    assert TaskRequest.of(None).task() is None


def test_options_that_another_task_reads_are_refused():
    for options, words in (
        ({"reference": "copy"}, "--task sft; it is of --task dpo, kto or grpo"),
        ({"task": "sft", "num_generations": 4}, "--task sft; it is of --task grpo"),
        ({"task": "dpo", "num_generations": 4}, "--num-generations is of --task grpo"),
        (
            {"task": "grpo", "reentrant_checkpoints": True},
            "-checkpoints is of --task dpo, reward or kto, but --task is grpo",
        ),
        ({"task": "reward", "router_loss": False}, "--router-loss is of --task dpo, kto or grpo"),
        ({"disable_dropout": False}, "--disable-dropout is given with --task sft"),
        ({"reentrant_checkpoints": True}, "--task sft; it is of --task dpo, reward or kto"),
        ({"task": "reward", "reference": "copy"}, "--reference is of --task dpo, kto or grpo, but --task is reward"),
        ({"task": "reward", "max_completion_tokens": 9}, "-tokens is of --task dpo, kto or grpo, but --task is reward"),
        ({"task": "dpo", "kto_loss": "kto"}, "--kto-loss is of --task kto, but --task is dpo"),
        ({"task": "grpo", "vllm_sleep_level": 2}, "--vllm-sleep-level is of --generation vllm"),
        ({"task": "grpo", "generation": "vllm", "vllm_memory_utilization": 1.5}, "at most 1 is needed"),
        ({"task": "grpo", "generation": "vllm", "vllm_sleep_level": 3}, "0, 1 or 2 is needed"),
        ({"task": "grpo", "num_generations": 1}, "--num-generations is 1; 2 or more is needed"),
        ({"task": "dpo", "made_for": "transformers"}, "--for is transformers"),
        ({"task": "grpo", "scoring_batch": 3}, "--scoring-batch is of --task-trainer verl or easyr1; leave it off"),
        ({"task": "grpo", "task_trainer": "verl", "made_for": "trl"}, "does not go with --for trl"),
    ):
        with pytest.raises(InputError, match=words):
            _ = parse({"model": "qwen2-vl-2b", **options}).decided


def test_a_task_is_planned_as_trl_trains_it():
    asked = parse({"model": "qwen2-vl-2b", "task": "dpo"})
    assert asked.made_for is Tool.TRL
    assert asked.decided.task == TrainingTask(kind=TaskKind.DPO)
    assert parse({"model": "qwen2-vl-2b", "task": "sft"}).made_for is None


def test_a_reference_is_where_trl_has_it():
    dpo, reward, kto, grpo = (TrainingTask(kind=kind) for kind in TaskKind)
    assert Recipe(task=reward).reference is Recipe(task=reward, method=Method.LORA).reference is Reference.NONE
    for task in (dpo, kto):
        assert Recipe(task=task).reference is Reference.COPY
        assert Recipe(task=task, method=Method.LORA).reference is Reference.ADAPTER_OFF
    assert Recipe(task=grpo).reference is Recipe().reference is Reference.NONE


def test_a_pair_is_two_rows():
    for kind in (TaskKind.DPO, TaskKind.REWARD):
        assert Recipe(micro_batch=3, task=TrainingTask(kind=kind)).rows == 2 * 3
    for kind in (TaskKind.KTO, TaskKind.GRPO):
        assert Recipe(micro_batch=3, task=TrainingTask(kind=kind)).rows == Recipe(micro_batch=3).rows == 3


def test_answers_leave_room_for_a_prompt():
    dpo, grpo = (TrainingTask(kind=kind) for kind in (TaskKind.DPO, TaskKind.GRPO))
    assert dpo.answer_tokens(1024) == 1024 - 1
    assert grpo.answer_tokens(1024) == 512
    with pytest.raises(InputError, match="--max-completion-tokens is 512, but a row"):
        grpo.answer_tokens(512)


def test_where_vllm_sleeps_segments_do_not_grow():
    vllm = {"model": "qwen2-vl-2b", "task": "grpo", "generation": "vllm"}
    assert parse({**vllm, "vllm_sleep_level": 2}).decided.expandable_segments is False
    assert parse(vllm).decided.expandable_segments is None


def test_a_part_of_the_gpu_that_vllm_cannot_start_with_is_refused():
    asked = {"model": "qwen2-vl-2b", "gpu": "a100-sxm4-80gb:1", "task": "grpo", "generation": "vllm"}
    with pytest.raises(InputError, match=r"--vllm-memory-utilization 0\.01 is 0\.79 GiB of each GPU"):
        requested_estimate(parse({**asked, "vllm_memory_utilization": 0.01}), ())
    found, _ = requested_estimate(parse(asked), ())
    task = found.recipe.task
    assert task is not None
    assert task.vllm_memory is not None
    assert found.engine is not None
    assert found.engine.least_bytes <= task.vllm_memory * found.engine.total_bytes


def test_answers_of_all_prompts_are_trained_on():
    """2 answers in a micro batch, 4 of them a step: whole groups of 8."""
    asked = {"model": "qwen2-vl-2b", "gpu": "a100-sxm4-80gb:1", "task": "grpo", "micro_batch": 2, "num_samples": 35}
    found, _ = requested_estimate(parse(asked), ())
    assert found.recipe.grad_accum == 4
    assert found.num_steps == 35 * 8 // (2 * 4)
