"""An adapter on the output head: the chunked loss takes it as a second product of each chunk."""

from dataclasses import replace

import pytest

from planned import cluster, rehearsed_timeline, shortened, workload
from vlmplan.estimation import Estimator, estimate
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method

NUM_TOKENS, RANK, VOCAB_SIZE, WIDTH = 1024, 16, 151_936, 896
"""Of Qwen2.5 0.5B."""


def adapted(**changes):
    return Recipe(method=Method.LORA, lora_targets="lm_head", lora_rank=RANK, **changes)


def flops(recipe):
    return estimate(workload("qwen2.5-0.5b", seq_len=NUM_TOKENS), recipe, cluster()).flops_per_step


def test_both_losses_compute_the_same_products():
    """Chunked and full differ in bytes alone: base forward and backward, A and B forward and both gradients."""
    assert flops(adapted(loss=LossKind.CHUNKED)) == flops(adapted(loss=LossKind.FULL))


def test_an_adapter_costs_its_thin_products_and_nothing_of_the_vocabulary_times_the_width():
    double = replace(adapted(), lora_rank=2 * RANK)
    thin_forward = 2 * NUM_TOKENS * RANK * (WIDTH + VOCAB_SIZE)
    wide_input_gradient = 2 * NUM_TOKENS * RANK * VOCAB_SIZE
    weight_gradients = thin_forward
    more = flops(double) - flops(adapted())
    # Nothing before the head is trained, so A's input needs no gradient.
    assert more == thin_forward + wide_input_gradient + weight_gradients


@pytest.mark.parametrize("zero_stage", [None, 2, 3])
def test_chunks_hold_less_than_all_logits_with_an_adapter_too(zero_stage):
    files = shortened("qwen2.5-0.5b", num_hidden_layers=2)
    peaks = [
        rehearsed_timeline(files, adapted(zero_stage=zero_stage, loss=loss), num_ranks=2, seq_len=4096).peak.total
        for loss in (LossKind.CHUNKED, LossKind.FULL)
    ]
    assert peaks[0] < peaks[1]


def test_the_head_of_an_adapted_vision_model_still_says_its_type():
    recipe = adapted(zero_stage=2)
    timeline = Estimator(workload("qwen2-vl-2b"), recipe).timeline(recipe, cluster(num_gpus=2))
    assert timeline.peak.total > 0
