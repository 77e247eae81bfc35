"""What the first micro batch that goes by a recorded order decides stands for all later ones under ZeRO-3."""

from dataclasses import replace
from typing import Any

import pytest

from timm_cases import GEMMA3N
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.coordinator.first_pass import Decided, decided_before, first_decisions
from vlmplan.engines.coordinator.module_order import SmallWeights, keeps_small
from vlmplan.engines.coordinator.walk import gather_walk
from vlmplan.engines.coordinator.wrapper_modules import WITHOUT_ADAPTERS
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.task import TrainingTask
from vlmplan.recipe.task_choices import Reference, TaskKind
from vlmplan.recipe.zero import ZeroSettings

WIDTH, MLP_WIDTH, NUM_LAYERS = 64, 128, 6
LLAMA = {
    "model_type": "llama",
    "vocab_size": 500,
    "hidden_size": WIDTH,
    "intermediate_size": MLP_WIDTH,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
}
ATTENTION_WEIGHT, MLP_WEIGHT = WIDTH * WIDTH, WIDTH * MLP_WIDTH
LAYER = 4 * ATTENTION_WEIGHT + 3 * MLP_WEIGHT
ATTENTION_STAYS = ZeroSettings(
    stage3_prefetch_bucket_size=LAYER // 2,
    stage3_max_live_parameters=3 * LAYER,
    stage3_max_reuse_distance=0,
    stage3_param_persistence_threshold=ATTENTION_WEIGHT,
)
"""Weights of attention are small ones, and those of MLPs are not."""
TABLE = ParameterTable(prepared_model(LLAMA, Recipe(zero_stage=3)))


def trace_of(method: Method = Method.FULL, *, checkpoints: bool = False) -> Trace:
    recipe = Recipe(method=method, zero_stage=3, activation_checkpointing=checkpoints)
    model = prepared_model(LLAMA, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    return model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)


def test_weights_that_prefetch_would_have_counted_on_are_let_go_and_gathered_again():
    """While small weights come, prefetch does not reach as far as their next uses."""
    trace = trace_of()
    anew, as_before = (
        gather_walk(trace, ATTENTION_STAYS, wrappers=WITHOUT_ADAPTERS, decided=Decided(is_within))
        for is_within in (False, True)
    )
    again, once = (sum((walk.forward.sent.trained + walk.backward.sent.trained).values()) for walk in (as_before, anew))
    assert again > once
    assert as_before.never_freed == anew.never_freed == 0


@pytest.mark.parametrize("change", ["stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"])
def test_every_micro_batch_decides_alike_where_nothing_is_prefetched_or_small(change: str):
    zero = replace(ATTENTION_STAYS, **{change: 0}, stage3_max_reuse_distance=LAYER)
    trace = trace_of()
    assert first_decisions(trace, zero, WITHOUT_ADAPTERS, Decided(within_step=True)) is None
    within = gather_walk(trace, zero, wrappers=WITHOUT_ADAPTERS, decided=Decided(within_step=True))
    assert within == gather_walk(trace, zero, wrappers=WITHOUT_ADAPTERS)


def test_it_decides_of_every_weight_whenever_a_module_of_its_is_done():
    """MLPs' three and the head, in forward and in backward, and the embedding, whose backward nothing ends."""
    found = first_decisions(trace_of(), ATTENTION_STAYS, WITHOUT_ADAPTERS, Decided(within_step=True))
    assert found is not None
    assert len(found) == 2 * (3 * NUM_LAYERS + 1) + 1
    assert len({number for _, number in found}) == 3 * NUM_LAYERS + 2


def test_an_evaluation_before_the_first_step_decides_that_forward_leaves_nothing_to_backward():
    zero = replace(ATTENTION_STAYS, stage3_prefetch_bucket_size=0, stage3_max_reuse_distance=2 * LAYER)
    trace = trace_of()
    usual, behind = (
        gather_walk(trace, zero, wrappers=WITHOUT_ADAPTERS, decided=Decided(by_evaluation=begins))
        for begins in (False, True)
    )
    assert behind.backward.sent.num_gathers > usual.backward.sent.num_gathers


def test_an_evaluation_before_the_first_step_decides_of_forward_alone():
    found = first_decisions(trace_of(), ATTENTION_STAYS, WITHOUT_ADAPTERS, Decided(by_evaluation=True))
    assert found is not None
    assert len(found) == 3 * NUM_LAYERS + 2
    assert not any(found.values())


def test_each_may_add_decisions_to_what_it_gets():
    trace, decided = trace_of(), Decided(by_evaluation=True)
    first, second = (first_decisions(trace, ATTENTION_STAYS, WITHOUT_ADAPTERS, decided) for _ in range(2))
    assert first == second
    assert first is not second


ON_START = Evaluation(batch=1, on_start=True)


@pytest.mark.parametrize(
    ("changes", "decided"),
    [
        ({}, Decided(by_evaluation=True)),
        ({"grad_accum": 2}, Decided(by_evaluation=True)),
        ({"grad_accum": 3}, Decided(within_step=True, by_evaluation=True)),
        ({"method": Method.LORA, "use_dora": True, "lora_dropout": 0.1}, Decided()),
        ({"evaluation": Evaluation(batch=1)}, Decided()),
        ({"loss": LossKind.TRL, "task": TrainingTask(kind=TaskKind.DPO)}, Decided(by_evaluation=True)),
        ({"loss": LossKind.TRL, "method": Method.LORA, "task": TrainingTask(kind=TaskKind.DPO)}, Decided()),
        ({"loss": LossKind.TRL, "micro_batch": 2, "task": TrainingTask(kind=TaskKind.KTO)}, Decided()),
    ],
)
def test_behind_an_evaluation_the_third_micro_batch_decides(changes: dict[str, Any], decided: Decided):
    recipe = Recipe(zero_stage=3, evaluation=ON_START).with_changes(**changes)
    assert decided_before(recipe, TABLE) == decided


def test_an_evaluation_that_calls_modules_which_training_reads_decides_nothing_for_it():
    recipe = Recipe(zero_stage=3, evaluation=ON_START)
    table = ParameterTable(prepared_model(GEMMA3N, recipe))
    assert decided_before(recipe, table) == Decided()


@pytest.mark.parametrize(
    ("recipe", "is_within"),
    [
        (Recipe(zero_stage=3), False),
        (Recipe(zero_stage=3, grad_accum=2), True),
        (
            Recipe(
                zero_stage=3,
                grad_accum=4,
                loss=LossKind.TRL,
                task=TrainingTask(kind=TaskKind.DPO, reference=Reference.COPY),
            ),
            True,
        ),
        (Recipe(zero_stage=3, grad_accum=4, loss=LossKind.TRL, task=TrainingTask(kind=TaskKind.GRPO)), False),
    ],
)
def test_the_first_one_follows_another_of_its_step_where_a_step_has_several(recipe: Recipe, is_within: bool):
    assert decided_before(recipe, TABLE) == Decided(within_step=is_within)


@pytest.mark.parametrize(
    ("small", "in_forward", "in_backward"),
    [
        (SmallWeights.WHOLE, 0, 0),
        (SmallWeights.WHOLE_AT_FIRST, 0, 0),
        (SmallWeights.BY_ORDER, 4 * NUM_LAYERS, 0),
        (SmallWeights.COME_AND_GO, 4 * NUM_LAYERS, 4 * NUM_LAYERS),
    ],
)
def test_small_weights_are_gathered_as_the_order_is_known(small: SmallWeights, in_forward: int, in_backward: int):
    zero = replace(ATTENTION_STAYS, stage3_prefetch_bucket_size=0)
    walk = gather_walk(trace_of(), zero, wrappers=WITHOUT_ADAPTERS, small=small)
    size = ATTENTION_WEIGHT * 2
    assert [walk.forward.sent.trained[size], walk.backward.sent.trained[size]] == [in_forward, in_backward]


def test_small_weights_that_a_step_leaves_whole_go_where_no_order_is_known():
    assert not keeps_small(SmallWeights.WHOLE_AT_FIRST, knows_order=False)
    assert keeps_small(SmallWeights.STAY, knows_order=False)
