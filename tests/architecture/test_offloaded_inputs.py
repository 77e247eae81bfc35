"""Activations in host memory: what leaves the GPU, what comes to the host, and the seconds on the way."""

import pytest

from planned import cluster, workload
from vlmplan.estimation import Estimator, estimate
from vlmplan.memory.host import pinned_bytes
from vlmplan.recipe import Recipe

LAYERS, WIDTH, TOKENS = 16, 2048, 8192
"""Llama 3.2 1B."""
INPUT_BYTES = TOKENS * WIDTH * 2


def estimated(**changes):
    recipe = Recipe(zero_stage=2, micro_batch=1, grad_accum=3, **changes)
    return estimate(workload("llama-3.2-1b", seq_len=TOKENS), recipe, cluster(num_gpus=2))


def trace(**changes):
    recipe = Recipe(zero_stage=2, **changes)
    return Estimator(workload("llama-3.2-1b", seq_len=TOKENS), recipe).trace(recipe, (8, 0))


def test_every_layers_input_goes_and_comes_back():
    forward, recompute, backward = trace(offload_activations=True).works()
    assert forward.host_copies == backward.host_copies == {INPUT_BYTES: LAYERS}
    assert recompute.host_copies == {}
    assert trace().works()[0].host_copies == {}


def test_nothing_moves_without_checkpoints():
    assert trace(offload_activations=True, activation_checkpointing=False).works()[0].host_copies == {}


def test_forward_ends_without_the_inputs_and_the_host_has_them():
    kept, moved = estimated(), estimated(offload_activations=True)
    after = [
        next(phase.resident.total for phase in one.timeline.phases if phase.name == "forward") for one in (kept, moved)
    ]
    assert after[0] - after[1] == LAYERS * INPUT_BYTES
    assert moved.host.steady_bytes - kept.host.steady_bytes == 2 * LAYERS * pinned_bytes(INPUT_BYTES)


def test_a_step_takes_the_copies_longer():
    kept, moved = estimated(), estimated(offload_activations=True)
    copied = 3 * 2 * LAYERS * INPUT_BYTES
    pcie = cluster().node.gpu.pcie_bytes_per_second
    assert moved.step_seconds - kept.step_seconds == pytest.approx(copied / (0.8 * pcie), rel=0.05)
