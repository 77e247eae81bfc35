"""Micro batches with forwards of a reference, or over answers to other prompts, in the replay of the allocator."""

import pytest

from planned import cluster
from task_phases import ANSWER, estimator
from vlmplan.architecture.trace import INPUTS
from vlmplan.engines.coordinator.module_order import (
    LATER,
    RECORDING_FIRST,
    SmallWeights,
    begun_without_order,
    small_without_order,
)
from vlmplan.memory.replayed_steps import alike
from vlmplan.memory.reservation import Reservation
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Reference, TaskKind, TaskTrainer
from vlmplan.recipe.task_losses import LOSSES_OF_TASKS

TRAINERS = (TaskTrainer.TRL, TaskTrainer.LLAMA_FACTORY, TaskTrainer.MS_SWIFT, TaskTrainer.AXOLOTL)


def recipe_of(trainer: TaskTrainer, kind: TaskKind, stage: int | None, **changes: object) -> Recipe:
    task = TrainingTask(kind=kind, completion_tokens=ANSWER, reference=Reference.ADAPTER_OFF, trainer=trainer)
    loss = LOSSES_OF_TASKS.get((trainer, kind), LossKind.TRL)
    return Recipe(method=Method.LORA, zero_stage=stage, loss=loss, task=task, expandable_segments=False, **changes)


@pytest.mark.sweep
@pytest.mark.parametrize("changes", [{"caches_casts": True, "grad_accum": 2}, {"activation_checkpointing": False}])
@pytest.mark.parametrize("stage", [None, 2, 3])
@pytest.mark.parametrize("kind", [TaskKind.DPO, TaskKind.KTO])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_replay_of_a_task_allocates_what_its_timeline_counts(trainer, kind, stage, changes):
    recipe, gpus = recipe_of(trainer, kind, stage, **changes), cluster(num_gpus=1 if stage is None else 2)
    traced = estimator(Method.LORA, stage)
    micro_batches = alike(traced._logged(recipe, gpus), recipe)
    replay = Reservation(traced.table, recipe, micro_batches, num_ranks=gpus.num_gpus)
    replay.run()
    assert replay.allocator.peak_allocated_bytes == pytest.approx(
        traced.timeline_of_tensors(recipe, gpus).peak.total, rel=0.02
    )
    assert replay.allocator.peak_reserved_bytes >= replay.allocator.peak_allocated_bytes


@pytest.mark.parametrize("kind", [TaskKind.DPO, TaskKind.KTO])
def test_the_batch_is_there_before_any_forward_begins(kind):
    """A model that reads its head fetches that under ZeRO-3 before its first module runs, and behind the batch."""
    recipe, gpus = recipe_of(TaskTrainer.TRL, kind, 3), cluster(num_gpus=2)
    trace = estimator(Method.LORA, 3).trace(recipe, gpus.node.gpu.kernel_capability)
    keys = [run.key for run in trace.schedule]
    assert keys[0] == INPUTS
    assert keys.count(INPUTS) == 1
    assert "model" in keys


@pytest.mark.parametrize("kind", [TaskKind.DPO, TaskKind.KTO])
def test_small_weights_are_whole_when_a_step_begins_alone_where_every_micro_batch_loses_its_order(kind):
    recipe, gpus = recipe_of(TaskTrainer.TRL, kind, 3, grad_accum=3), cluster(num_gpus=2)
    trace = estimator(Method.LORA, 3).trace(recipe, gpus.node.gpu.kernel_capability)
    first, *others = small_without_order(trace, recipe)
    assert first is SmallWeights.WHOLE_AT_FIRST
    assert others == [SmallWeights.BY_ORDER] * 2
    assert begun_without_order(LATER, first, trace).small is first
    records_as_ever = kind is TaskKind.DPO  # in KTO the forward over other answers goes by what backward has recorded
    of_run = begun_without_order(RECORDING_FIRST, first, trace)
    assert (of_run.small is SmallWeights.BY_ORDER) is records_as_ever
