"""Recipes in words: what changes the bytes of a run changes what is said of it."""

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Any, get_type_hints

import pytest

from planned import cluster, of_few_layers, workload
from vlmplan.answers.setups import recipe_text
from vlmplan.errors import VlmplanError
from vlmplan.estimation import estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Generation, KTOLoss, Reference, TaskKind, TaskTrainer
from vlmplan.rules import check

NUM_GPUS = 2
BASES = {
    "plain": Recipe(grad_accum=2),
    "lora": Recipe(method=Method.LORA, grad_accum=2),
    "sharded": Recipe(zero_stage=2, grad_accum=2),
    "fsdp": Recipe(fsdp=True, grad_accum=2),
    "qlora": Recipe(method=Method.QLORA, zero_stage=1),
}
SAID_ELSEWHERE = {"train_vision", "train_projector", "train_language"}
"""The first line says which parts are trained."""


def choices() -> Iterator[tuple[str, list[Any]]]:
    for name, kind in get_type_hints(Recipe).items():
        if name in Recipe.__dataclass_fields__ and name not in SAID_ELSEWHERE:
            if kind is bool:
                yield name, [False, True]
            elif isinstance(kind, type) and issubclass(kind, Enum):
                yield name, list(kind)


def bytes_of(recipe: Recipe) -> tuple[int, ...] | None:
    """Peaks of all phases; None where such a recipe is refused."""
    where = cluster(num_gpus=NUM_GPUS)
    try:
        check(recipe, cluster=where)
        found = estimate(workload(of_few_layers("qwen2-vl-2b", 1)), recipe, where)
    except VlmplanError:
        return None
    return tuple(phase.peak.total for phase in found.timeline.phases)


@pytest.mark.sweep
@pytest.mark.parametrize("base", BASES)
def test_recipes_of_other_bytes_are_said_in_other_words(base: str):
    recipe = BASES[base]
    for name, values in choices():
        by_text: dict[str, set[tuple[int, ...]]] = {}
        for value in values:
            changed = replace(recipe, **{name: value})
            found = bytes_of(changed)
            if found is not None:
                by_text.setdefault(recipe_text(changed, num_gpus=NUM_GPUS, sees=True), set()).add(found)
        assert all(len(found) == 1 for found in by_text.values()), name


def test_what_a_task_needs_is_said():
    tasks = [
        TrainingTask(kind=TaskKind.DPO),
        TrainingTask(kind=TaskKind.DPO, reference=Reference.PRECOMPUTED),
        TrainingTask(kind=TaskKind.DPO, completion_tokens=77),
        *(TrainingTask(kind=TaskKind.GRPO, **changes) for changes in GRPO_CHANGES),
    ]
    texts = [recipe_text(Recipe(task=task, grad_accum=2), num_gpus=4, sees=False) for task in tasks]
    assert len(set(texts)) == len(tasks)


GRPO_CHANGES: list[dict[str, Any]] = [
    {},
    {"reference": Reference.COPY},
    {"completion_tokens": 77},
    {"num_generations": 4},
    {"steps_per_generation": 4},
    {"num_iterations": 2},
    {"generation": Generation.SERVER},
    {"generation": Generation.VLLM},
    {"generation": Generation.VLLM, "vllm_memory": 0.4},
    {"generation": Generation.VLLM, "vllm_sleep_level": 1},
    {"generation": Generation.VLLM, "vllm_sleep_level": 2},
    {"generation": Generation.VLLM, "vllm_tensor_parallel": 2},
    {"reward_params": 7 * 10**9},
]


def test_a_reference_that_is_a_copy_of_adapters_is_not_said_to_be_without_them():
    task = TrainingTask(kind=TaskKind.GRPO, reference=Reference.ADAPTER_OFF)
    texts = [
        recipe_text(Recipe(task=replace(task, trainer=trainer), method=Method.LORA), num_gpus=1, sees=False)
        for trainer in (TaskTrainer.TRL, TaskTrainer.AXOLOTL)
    ]
    assert ["adapters off as reference" in text for text in texts] == [True, False]
    assert "a copy of the adapters as reference" in texts[1]


def test_the_loss_of_kto_is_told_where_it_estimates_nothing():
    texts = [
        recipe_text(Recipe(task=TrainingTask(kind=TaskKind.KTO, kto_loss=loss)), num_gpus=1, sees=False)
        for loss in KTOLoss
    ]
    assert ["no estimate of the KL divergence" in text for text in texts] == [False, True]
