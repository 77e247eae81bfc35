"""MLPs tile by tile on the tape: what they hold, and that tiles which are alike are counted as if each had run.

What DeepSpeed's own function holds is in ``tests/rehearsed`` and ``tests/trainer/models/test_tiling.py``.
"""

import pytest

from planned import memory_timeline
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Span
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, num_tiles
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.timing.hooks import hooked_calls

WIDTH, INNER, NUM_TOKENS = 64, 7 * 64, 64 * 11 - 3
CONFIG = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
}
SMALL_SETTINGS = ZeroSettings(
    reduce_bucket_size=2 * WIDTH * INNER,
    stage3_param_persistence_threshold=2 * WIDTH,
    stage3_prefetch_bucket_size=WIDTH * INNER,
    stage3_max_reuse_distance=WIDTH * INNER,
)


class EveryTile(Tape):
    """Runs tiles that are alike too."""

    runs_every_call = True


def traced(recipe, kind=Tape, *, num_tokens=NUM_TOKENS, micro_batch=1):
    model = prepared_model(CONFIG, recipe)
    tape = kind(keeps_linear_inputs=recipe.keeps_linear_inputs, follows_weights=recipe.zero_stage == 3)
    tape.tiles_mlps = recipe.tiled_mlp
    batch = Batch(micro_batch=micro_batch, num_tokens=num_tokens)
    return ParameterTable(model), model.run(tape, batch, AttentionBackend(), loss=recipe.loss)


def timeline(recipe, kind=Tape, **sizes):
    table, trace = traced(recipe, kind, **sizes)
    return memory_timeline(table, trace, recipe, num_ranks=4)


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_tiles_that_are_alike_are_counted_as_if_each_had_run(stage, method, checkpoints):
    recipe = Recipe(
        zero_stage=stage,
        method=method,
        tiled_mlp=True,
        activation_checkpointing=checkpoints,
        grad_accum=2,
        zero=SMALL_SETTINGS,
    )
    assert timeline(recipe) == timeline(recipe, EveryTile)
    (_, repeated), (_, ran) = traced(recipe), traced(recipe, EveryTile)
    assert repeated.works() == ran.works()
    if stage == 3:
        assert hooked_calls(repeated, 0) == hooked_calls(ran, 0)


def test_without_checkpoints_a_layer_keeps_its_input_and_nothing_that_its_mlp_makes():
    kept = {}
    for tiled in (False, True):
        _, trace = traced(Recipe(zero_stage=2, activation_checkpointing=False, tiled_mlp=tiled))
        spans = [event for _, section in trace.forward() for event in section.forward if isinstance(event, Span)]
        kept[tiled] = sum(span.delta_bytes for span in spans)
    inner = 2 * INNER * NUM_TOKENS  # bytes of gate, up, silu(gate) and their product, each
    assert kept[False] - kept[True] == 3 * 4 * inner


def test_an_mlp_of_tiles_runs_twice_and_under_a_checkpoint_three_times():
    products = 3 * 2 * WIDTH * INNER * NUM_TOKENS
    flops = {}
    for checkpoints in (False, True):
        for tiled in (False, True):
            recipe = Recipe(zero_stage=2, activation_checkpointing=checkpoints, tiled_mlp=tiled)
            flops[checkpoints, tiled] = sum(work.flops for work in traced(recipe)[1].works())
    assert flops[False, True] - flops[False, False] == 3 * products
    assert flops[True, True] - flops[True, False] == 3 * (products + 2 * WIDTH * INNER * NUM_TOKENS)


def test_samples_no_longer_than_they_are_wide_are_one_tile():
    assert [num_tiles(tokens, WIDTH) for tokens in (1, WIDTH, WIDTH + 1, 5 * WIDTH)] == [1, 1, 2, 5]
    whole, tiled = (timeline(Recipe(zero_stage=2, tiled_mlp=tiled), num_tokens=WIDTH) for tiled in (False, True))
    assert whole == tiled


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_step_with_tiles_takes_less(stage, method):
    whole, tiled = (timeline(Recipe(zero_stage=stage, method=method, tiled_mlp=tiled)) for tiled in (False, True))
    assert tiled.peak.total < whole.peak.total
