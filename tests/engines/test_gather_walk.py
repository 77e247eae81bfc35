"""A walk over gathered weights that leaves equal layers out says the same as one through all of them."""

import pytest
from hypothesis import strategies as st

from laws import law
from vlmplan.architecture.attention import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.gather_stretches import shortened
from vlmplan.engines.gather_walk import WalkedSchedule, WalkKey, gather_walk
from vlmplan.recipe import Method, Recipe, ZeroSettings

NUM_LAYERS = 31
LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
LAYER_NUMEL = 128 * 128 + 2 * 64 * 128 + 128 * 128 + 3 * 352 * 128


def trace_of(*, is_efficient: bool, checkpoints: bool, method: Method = Method.FULL) -> Trace:
    recipe = Recipe(
        method=method,
        zero_stage=3,
        zero=ZeroSettings(memory_efficient_linear=is_efficient),
        activation_checkpointing=checkpoints,
        vision_activation_checkpointing=checkpoints,
    )
    model = prepared_model(LLAMA, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    tape = Tape(keeps_linear_inputs=recipe.keeps_linear_inputs)
    return model.run(tape, Batch(micro_batch=1, num_tokens=8), AttentionBackend(), chunks_loss=True)


TRACES = [
    trace_of(is_efficient=is_efficient, checkpoints=checkpoints, method=method)
    for is_efficient in (True, False)
    for checkpoints in (True, False)
    for method in (Method.FULL, Method.LORA)
]
SIZES = st.sampled_from(
    [0, 1, 128, 40_000, LAYER_NUMEL, LAYER_NUMEL + 1, 3 * LAYER_NUMEL, 50 * LAYER_NUMEL]
) | st.integers(0, 8 * LAYER_NUMEL)


def key_of(trace: Trace, zero: ZeroSettings, *, is_alone: bool = False) -> WalkKey:
    return WalkKey(shape=None, sizes=zero, num_wrappers=3, is_alone=is_alone, trace=trace)


@law(
    trace=st.sampled_from(TRACES),
    prefetch=SIZES,
    live=SIZES,
    reuse=SIZES,
    threshold=st.sampled_from([0, 128, 10 * 128]),
    is_alone=st.booleans(),
    quick=40,
    thorough=150,
)
def test_leaving_equal_layers_out_changes_nothing(trace, prefetch, live, reuse, threshold, is_alone):
    zero = ZeroSettings(
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=reuse,
        stage3_param_persistence_threshold=threshold,
    )
    through_all = WalkedSchedule(key_of(trace, zero, is_alone=is_alone), trace.schedule, []).whole()
    assert gather_walk(trace, zero, num_wrappers=3, is_alone=is_alone) == through_all


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("num_layers", [0, 1, 2])
def test_with_the_sizes_that_are_chosen_for_speed_or_memory_most_layers_are_left_out(trace, num_layers):
    zero = ZeroSettings(
        stage3_prefetch_bucket_size=min(num_layers, 1) * LAYER_NUMEL,
        stage3_max_live_parameters=(num_layers + 1) * LAYER_NUMEL if num_layers else 0,
        stage3_max_reuse_distance=num_layers * LAYER_NUMEL,
        stage3_param_persistence_threshold=1280,
    )
    key = key_of(trace, zero)
    schedule, stretches = shortened(trace, key.reach)
    walked = WalkedSchedule(key, schedule, stretches)
    assert [walked.repeats(stretch, phase) for stretch in stretches for phase in (0, 1)] == [True, True]
    assert NUM_LAYERS - 13 <= len(trace.schedule) - len(schedule) <= NUM_LAYERS - 5
