"""A walk over gathered weights that leaves equal layers out says the same as one through all of them."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from laws import law
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model, set_checkpointing
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Trace
from vlmplan.engines.coordinator.first_pass import Decided, first_decisions
from vlmplan.engines.coordinator.gathered_weights import notify
from vlmplan.engines.coordinator.module_order import SmallWeights
from vlmplan.engines.coordinator.repeated_layers import of_weights, shortened
from vlmplan.engines.coordinator.walk import WalkedSchedule, WalkKey, gather_walk
from vlmplan.engines.coordinator.wrapper_modules import WITHOUT_ADAPTERS
from vlmplan.engines.events import Component, Sink, Stream
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.zero3 import Zero3
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Offload
from vlmplan.recipe.zero import ZeroSettings

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
EXPERTS = {
    **{key: LLAMA[key] for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 192,
    "tie_word_embeddings": True,
}
"""Whose sparse blocks are leaf modules."""
ATTENTION_NUMEL = 2 * 128 * 128 + 2 * 64 * 128
EXPERTS_NUMEL = 8 * 3 * 128 * 192 + 8 * 128
LAYER_NUMEL = 128 * 128 + 2 * 64 * 128 + 128 * 128 + 3 * 352 * 128


class Made(NamedTuple):
    table: ParameterTable
    recipe: Recipe
    trace: Trace


def made(
    *, is_efficient: bool, checkpoints: bool, method: Method = Method.FULL, config: Mapping[str, Any] = LLAMA
) -> Made:
    recipe = Recipe(
        method=method,
        zero_stage=3,
        zero=ZeroSettings(memory_efficient_linear=is_efficient),
        activation_checkpointing=checkpoints,
        vision_activation_checkpointing=checkpoints,
    )
    model = prepared_model(config, recipe)
    set_checkpointing(list(model.stacks()), recipe)
    tape = Tape(keeps_linear_inputs=recipe.keeps_linear_inputs)
    trace = model.run(tape, Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.CHUNKED)
    return Made(ParameterTable(model), recipe, trace)


MADE = [
    made(is_efficient=is_efficient, checkpoints=checkpoints, method=method)
    for is_efficient in (True, False)
    for checkpoints in (True, False)
    for method in (Method.FULL, Method.LORA)
]
TRACES = [one.trace for one in MADE]
OF_LEAVES = [made(is_efficient=True, checkpoints=checkpoints, config=EXPERTS).trace for checkpoints in (True, False)]
SIZES = st.sampled_from(
    [0, 1, 128, 40_000, LAYER_NUMEL, LAYER_NUMEL + 1, 3 * LAYER_NUMEL, 50 * LAYER_NUMEL]
) | st.integers(0, 8 * LAYER_NUMEL)

THRESHOLDS = st.sampled_from([0, 128, 10 * 128, 64 * 128, 128 * 128])


def key_of(
    trace: Trace,
    zero: ZeroSettings,
    *,
    num_ranks: int = 2,
    among: int = 1,
    small: SmallWeights = SmallWeights.WHOLE,
) -> WalkKey:
    return WalkKey(
        shape=None,
        sizes=zero,
        wrappers=WITHOUT_ADAPTERS,
        num_ranks=num_ranks,
        trace=trace,
        secondary_among=among,
        small=small,
    )


@law(
    trace=st.sampled_from(TRACES + OF_LEAVES),
    prefetch=SIZES,
    live=SIZES,
    reuse=SIZES,
    threshold=THRESHOLDS,
    num_ranks=st.sampled_from([1, 2, 3]),
    among=st.sampled_from((1, 2)),
    within_step=st.booleans(),
    by_evaluation=st.booleans(),
    quick=40,
    thorough=150,
)
def test_leaving_equal_layers_out_changes_nothing(
    trace, prefetch, live, reuse, threshold, num_ranks, among, within_step, by_evaluation
):
    """Nor in the micro batch whose decisions stand, where small weights come layer after layer."""
    decided = Decided(within_step, by_evaluation)
    zero = ZeroSettings(
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=reuse,
        stage3_param_persistence_threshold=threshold,
    )
    key = key_of(trace, zero, num_ranks=num_ranks, among=among)
    decisions = first_decisions(trace, zero, WITHOUT_ADAPTERS, decided)
    through_all = WalkedSchedule(key, trace.schedule, [], decisions)
    short = gather_walk(
        trace,
        zero,
        wrappers=WITHOUT_ADAPTERS,
        num_ranks=num_ranks,
        secondary_among=among,
        decided=decided,
    )
    assert short == through_all.whole()


@law(
    trace=st.sampled_from(TRACES + OF_LEAVES),
    prefetch=SIZES,
    live=SIZES,
    reuse=SIZES,
    threshold=THRESHOLDS,
    num_ranks=st.sampled_from([1, 2, 3]),
    quick=40,
    thorough=150,
)
def test_leaving_equal_layers_out_changes_nothing_where_small_weights_come_and_stay(
    trace, prefetch, live, reuse, threshold, num_ranks
):
    zero = ZeroSettings(
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=reuse,
        stage3_param_persistence_threshold=threshold,
    )
    small = SmallWeights.STAY
    through_all = WalkedSchedule(key_of(trace, zero, num_ranks=num_ranks, small=small), trace.schedule, [])
    short = gather_walk(trace, zero, wrappers=WITHOUT_ADAPTERS, num_ranks=num_ranks, small=small)
    assert short == through_all.whole()


def test_experts_of_a_leaf_lie_between_no_two_uses_of_others():
    """Between a layer's computing anew and its backward its experts run twice. Within a distance far below theirs stay
    o_proj, with nothing else in between, and v_proj, with o_proj twice; q_proj and k_proj do not."""
    reuse = ATTENTION_NUMEL
    assert 2 * 128 * 128 + 2 * 64 * 128 == reuse < EXPERTS_NUMEL
    q_or_o, k_or_v = 128 * 128 * 2, 64 * 128 * 2

    def sent(distance: int) -> dict[int, int]:
        zero = ZeroSettings(
            stage3_prefetch_bucket_size=0,
            stage3_max_live_parameters=0,
            stage3_max_reuse_distance=distance,
            stage3_param_persistence_threshold=1280,
        )
        return gather_walk(OF_LEAVES[0], zero, wrappers=WITHOUT_ADAPTERS).backward.sent.trained

    assert [sent(0)[size] for size in (q_or_o, k_or_v)] == [NUM_LAYERS * (2 + 2), NUM_LAYERS * (2 + 2)]
    assert [sent(reuse)[size] for size in (q_or_o, k_or_v)] == [NUM_LAYERS * (2 + 1), NUM_LAYERS * (2 + 1)]


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


class CountedBytes(Sink):
    """Bytes of what is allocated now, and the most since ``most_bytes`` was set."""

    def __init__(self) -> None:
        self.live_bytes = self.most_bytes = 0
        self._sizes: dict[Hashable, int] = {}

    def allocate(self, owner: Hashable, component: Component, num_bytes: int, stream: Stream = Stream.DEFAULT) -> None:
        assert owner not in self._sizes
        self._sizes[owner] = num_bytes
        self.live_bytes += num_bytes
        self.most_bytes = max(self.most_bytes, self.live_bytes)

    def free(self, owner: Hashable) -> None:
        self.live_bytes -= self._sizes.pop(owner, 0)

    def transient(self, component: Component, sizes: Sequence[int], stream: Stream = Stream.DEFAULT) -> None:
        self.most_bytes = max(self.most_bytes, self.live_bytes + sum(sizes))


@law(
    number=st.integers(0, len(MADE) - 1),
    prefetch=SIZES,
    live=SIZES,
    reuse=SIZES,
    threshold=THRESHOLDS,
    num_ranks=st.sampled_from([1, 2, 3, 4]),
    offloads=st.booleans(),
    grad_accum=st.sampled_from((1, 2)),
    quick=20,
    thorough=100,
)
def test_a_replay_has_the_bytes_of_the_tensors_that_come_and_go(
    number, prefetch, live, reuse, threshold, num_ranks, offloads, grad_accum
):
    """On any number of ranks, whatever they pad weights by, with shards that come from the host."""
    one = MADE[number]
    zero = ZeroSettings(
        stage3_prefetch_bucket_size=prefetch,
        stage3_max_live_parameters=live,
        stage3_max_reuse_distance=reuse,
        stage3_param_persistence_threshold=threshold,
        memory_efficient_linear=one.recipe.zero.memory_efficient_linear,
    )
    offload = Offload.CPU if offloads or num_ranks == 1 else Offload.NONE
    recipe = one.recipe.with_changes(zero=zero, offload_params=offload, grad_accum=grad_accum)
    engine = Zero3(one.table, recipe, num_ranks=num_ranks)
    sink = CountedBytes()
    gathered, gathers = engine.gathered_weights(one.trace, sink), engine.gather_replay(one.trace)
    assert gathered is not None
    assert gathers is not None
    phases = ((False, one.trace.forward(), gathers.forward), (True, one.trace.backward(), gathers.backward))
    for is_late, phase, replayed in phases:
        if is_late:
            before = sink.most_bytes = sink.live_bytes
            gathered.begin_backward()
            after, most = replayed.start
            assert (sink.live_bytes, sink.most_bytes) == (after, max(before, most))
        for (run, section), found in zip(phase, replayed.runs(), strict=True):
            events = of_weights(section.backward if is_late else section.forward)
            for event, (after, most) in zip(events, found, strict=True):
                before = sink.most_bytes = sink.live_bytes
                notify(gathered, event, run)
                assert (sink.live_bytes, sink.most_bytes) == (after, max(before, most))
        if is_late:
            gathered.end_backward()
        assert sink.live_bytes == replayed.left_bytes
    gathered.partition_all()
    assert sink.live_bytes == gathers.never_freed_bytes
