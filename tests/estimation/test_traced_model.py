"""An estimator answers the same whatever it was asked before: every setting of a micro batch is told apart."""

from typing import Any

import pytest

from planned import cluster, decided, of_few_layers, workload
from vlmplan.answers.estimate import document
from vlmplan.errors import InputError
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import (
    AttentionImplementation,
    BatchesOnGpu,
    Batching,
    CheckpointKind,
    InputGradients,
    LinearAttention,
    LossKind,
    Method,
)
from vlmplan.recipe.evaluation import Evaluation
from vlmplan.recipe.libraries import TorchVersion
from vlmplan.recipe.settings import MICRO_BATCH_FIELDS, PROCESS_FIELDS
from vlmplan.request.setup import resolved_recipe

OTHERS: dict[str, Any] = {
    "micro_batch": 2,
    "grad_accum": 3,
    "batching": Batching.PADDING_FREE,
    "batches_on_gpu": BatchesOnGpu.STEP,
    "attention": AttentionImplementation.EAGER,
    "linear_attention": LinearAttention.FLA,
    "torch_version": TorchVersion.V2_15,
    "loss": LossKind.FULL,
    "activation_checkpointing": False,
    "vision_activation_checkpointing": False,
    "offload_activations": True,
    "tiled_mlp": True,
    "input_gradients": InputGradients.ALL,
    "checkpoint_kind": CheckpointKind.REENTRANT,
    "evaluation": Evaluation(batch=4),
    "caches_casts": False,
    "expandable_segments": True,
}
"""What each setting is changed to. Those of a task are made for another trainer, whose estimators are its own."""
ON = cluster(num_gpus=1)


def recipe(alias: str, method: Method, changed: dict[str, Any]) -> Recipe:
    fields = {"method": method, "vision_activation_checkpointing": True} | changed
    return resolved_recipe(decided(**fields), ON, of_few_layers(alias))[0]


def test_every_setting_of_a_micro_batch_is_changed():
    assert {*OTHERS, "task"} == {*MICRO_BATCH_FIELDS, *PROCESS_FIELDS}


@pytest.mark.parametrize(
    ("alias", "method"),
    [
        ("smollm2-135m", Method.LORA),
        *(pytest.param("qwen2-vl-2b", method, marks=pytest.mark.sweep) for method in Method),
        *(pytest.param("qwen2.5-omni-3b", method, marks=pytest.mark.sweep) for method in Method),
    ],
)
def test_what_an_estimator_was_asked_before_changes_no_answer(alias: str, method: Method):
    samples = workload(of_few_layers(alias), seq_len=512)
    usual = recipe(alias, method, {})
    after: dict[str, dict[str, Any]] = {}
    for name, value in OTHERS.items():
        try:
            other = recipe(alias, method, {name: value})
        except InputError:  # what this model has not
            continue
        for first, second in ((usual, other), (other, usual)):
            used = Estimator(samples, first)
            used.estimate(first, ON)
            after[name] = document(used.estimate(second, ON))
            assert after[name] == document(Estimator(samples, second).estimate(second, ON)), name
    assert len(after) >= 12


@pytest.mark.parametrize(
    ("alias", "has_wide_heads"),
    [("smollm2-135m", False), pytest.param("gemma-3-1b", True, marks=pytest.mark.sweep)],
)
def test_a_first_trace_for_little_shared_memory_is_one_for_all_cards_where_no_head_is_wide(
    alias: str, has_wide_heads: bool
):
    samples, usual = workload(of_few_layers(alias), seq_len=512), recipe(alias, Method.LORA, {})
    small = cluster("l4", num_gpus=1)
    first, later = Estimator(samples, usual), Estimator(samples, usual)
    on_small = first.trace(usual, small.node.gpu.kernel_capability)
    on_others = later.trace(usual, ON.node.gpu.kernel_capability)
    assert document(first.estimate(usual, small)) == document(later.estimate(usual, small))
    assert document(first.estimate(usual, ON)) == document(later.estimate(usual, ON))
    assert (on_small is first.trace(usual, ON.node.gpu.kernel_capability)) is not has_wide_heads
    assert (on_others is later.trace(usual, small.node.gpu.kernel_capability)) is not has_wide_heads
