"""ZeRO-3's whole weights: what comes, what goes, and what autograd keeps, beside the real engine on two CPU ranks."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

import gathered_weights_probe
from planned import rehearsed_timeline
from vlmplan.architecture.attention_backend import AttentionBackend
from vlmplan.architecture.model import Batch
from vlmplan.architecture.prepare import prepared_model
from vlmplan.architecture.tape import Tape
from vlmplan.architecture.trace import Event, Run, Trace
from vlmplan.engines import engine_of
from vlmplan.engines.coordinator.gathered_weights import GatheredWeights, notify
from vlmplan.engines.coordinator.module_order import LATER, RECORDING_FIRST, Begun, Lost, SmallWeights
from vlmplan.engines.coordinator.repeated_layers import of_weights
from vlmplan.engines.events import NULL_SINK, Stream
from vlmplan.engines.parameters import ParameterTable
from vlmplan.engines.profile import micro_batch_profile
from vlmplan.memory.blocks import BlockLog
from vlmplan.memory.timeline import Timeline
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import AttentionImplementation, LossKind, Precision
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.workload import ModelFiles

LLAMA = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
LAYER_NUMEL = 128 * 128 + 2 * 64 * 128 + 128 * 128 + 3 * 352 * 128
HEAD_NUMEL = 1000 * 128
NORM_NUMEL = 7 * 128
"""Two a layer and the last one; never kept, since autograd saves the weight itself."""


@pytest.fixture(scope="module")
def whole_bytes():
    return gathered_weights_probe.run(LLAMA, os.environ)


def planned_timeline(*, is_efficient: bool, checkpoints: bool, precision: Precision = Precision.BF16) -> Timeline:
    zero = ZeroSettings(
        reduce_bucket_size=1_000_000,
        stage3_param_persistence_threshold=0,
        stage3_max_live_parameters=0,
        stage3_max_reuse_distance=0,
        stage3_prefetch_bucket_size=0,
        memory_efficient_linear=is_efficient,
    )
    recipe = Recipe(
        zero_stage=3,
        precision=precision,
        zero=zero,
        activation_checkpointing=checkpoints,
        attention=AttentionImplementation.SDPA,
        loss=LossKind.FULL,
    )
    return rehearsed_timeline(ModelFiles(id="tiny", config=LLAMA), recipe, num_ranks=2, seq_len=8)


def planned_bytes(*, is_efficient: bool, checkpoints: bool) -> int:
    forward, backward = planned_timeline(is_efficient=is_efficient, checkpoints=checkpoints).phases[2:4]
    return forward.resident.weights - backward.resident.weights


@pytest.mark.long
@pytest.mark.sweep
@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("is_efficient", [False, True])
def test_as_many_weights_are_whole_after_forward_as_under_the_real_zero_3(whole_bytes, is_efficient, checkpoints):
    planned = planned_bytes(is_efficient=is_efficient, checkpoints=checkpoints)
    assert planned == whole_bytes[f"{is_efficient} {checkpoints}"]


def test_plain_linears_keep_every_weight_whole_and_deepspeeds_keep_none():
    assert planned_bytes(is_efficient=False, checkpoints=False) == 2 * (3 * LAYER_NUMEL + HEAD_NUMEL)
    assert planned_bytes(is_efficient=True, checkpoints=False) == 0


def test_under_checkpointing_only_the_head_stays_whole():
    assert planned_bytes(is_efficient=False, checkpoints=True) == 2 * HEAD_NUMEL


@pytest.mark.long
@pytest.mark.sweep
def test_a_module_whose_input_needs_no_gradient_is_whole_until_backward_ends(whole_bytes):
    trace = prepared_model(LLAMA, Recipe(zero_stage=3)).run(
        Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(implementation="sdpa"), loss=LossKind.FULL
    )
    embedding = 2 * 1000 * 128
    assert whole_bytes["unreleased"] == micro_batch_profile(trace).unreleased_bytes == embedding


@pytest.mark.sweep
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.BF16_PURE, Precision.FP32])
def test_a_new_engine_holds_master_weights_even_of_the_weights_own_type(whole_bytes, precision):
    init = planned_timeline(is_efficient=True, checkpoints=True, precision=precision).phases[1]
    assert init.resident.total == pytest.approx(whole_bytes[f"built {precision.value}"], rel=0.001)


def gathering(
    log: BlockLog, zero: ZeroSettings, hpz: int = 1, **micro_batch: Any
) -> tuple[GatheredWeights, Trace, ParameterTable]:
    """A micro batch of two ranks, or of two pairs, that is about to begin."""
    recipe = Recipe(zero_stage=3, zero=zero, hpz=hpz, loss=LossKind.FULL, activation_checkpointing=False)
    model = prepared_model(LLAMA, recipe)
    batch = Batch(micro_batch=1, num_tokens=8, images_per_sample=0, image=None)
    trace = model.run(Tape(autocast=recipe.autocast), batch, AttentionBackend(), loss=LossKind.FULL)
    table = ParameterTable(model)
    gathered = engine_of(table, recipe, num_ranks=2 * hpz).gathered_weights(trace, log, **micro_batch)
    assert gathered is not None
    return gathered, trace, table


def events_of(trace: Trace) -> Iterator[tuple[Run, Event]]:
    for run, section in trace.forward():
        yield from ((run, event) for event in section.forward)
    for run, section in trace.backward():
        yield from ((run, event) for event in section.backward)


@pytest.mark.parametrize(
    ("small", "num_gathered", "num_left"),
    [(SmallWeights.WHOLE, 0, 0), (SmallWeights.STAY, 7, 7), (SmallWeights.COME_AND_GO, 2 * 7, 0)],
)
def test_small_weights_come_and_go_until_the_order_of_modules_is_known_and_stay_from_then_on(
    small, num_gathered, num_left
):
    """The norms, of 256 bytes each: for forward and for backward while the order is recorded."""
    log = BlockLog()
    zero = ZeroSettings(stage3_param_persistence_threshold=128, stage3_prefetch_bucket_size=200_000)
    gathered, trace, _ = gathering(
        log, zero, begun=Begun(Lost.AT_START if small is SmallWeights.COME_AND_GO else Lost.NEVER, small)
    )
    for run, event in events_of(trace):
        notify(gathered, event, run)
    changes = log.taken()
    norms = {handle for handle, num_bytes, _ in changes if num_bytes == 256}
    assert len(norms) == num_gathered
    assert len(norms - {handle for handle, num_bytes, _ in changes if not num_bytes}) == num_left


def test_second_shards_are_made_where_a_module_is_done_and_whole_weights_on_the_stream_that_gathers_them():
    """The second ones of a pair of ranks are half as large as their weights."""
    log = BlockLog()
    zero = ZeroSettings(stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=0)
    gathered, trace, _ = gathering(log, zero, hpz=2)
    for run, event in events_of(trace):
        notify(gathered, event, run)
    made = {(num_bytes, stream) for _, num_bytes, stream in log.taken() if num_bytes}
    streams = {wanted: {num_bytes for num_bytes, stream in made if stream is wanted} for wanted in Stream}
    assert {2 * num_bytes for num_bytes in streams[Stream.DEFAULT]} <= streams[Stream.GATHER]
    assert streams[Stream.DEFAULT]


def test_weights_lie_in_a_flat_buffer_in_the_order_in_which_they_were_sharded():
    """``ds_id``, which backward uses from its end."""
    zero = ZeroSettings(stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=200_000)
    gathered, trace, table = gathering(BlockLog(), zero)
    several = set[tuple[int, ...]]()
    for run, event in events_of(trace):
        notify(gathered, event, run)
        together = (tuple(table.places_sharded[one.key] for one in gather.storages) for gather in gathered._under_way)
        several |= {places for places in together if len(places) > 1}
    assert several
    assert all(list(places) == sorted(places) for places in several)


@pytest.mark.parametrize("is_first", [True, False])
def test_blocks_of_gathered_weights_add_up_to_the_bytes_that_are_counted(is_first):
    """And in the first micro batch no block is larger than a module's weights: nobody knows yet what comes next."""
    zero = ZeroSettings(stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=200_000)
    log = BlockLog()
    gathered, trace, _ = gathering(log, zero, begun=RECORDING_FIRST if is_first else LATER)
    alive: dict[int, int] = {}
    largest = 0
    for run, event in events_of(trace):
        notify(gathered, event, run)
        for handle, num_bytes, _ in log.taken():
            largest = max(largest, num_bytes)
            if num_bytes:
                alive[handle] = num_bytes
            else:
                del alive[handle]
        assert sum(alive.values()) == gathered.live_bytes
    module_bytes = 2 * HEAD_NUMEL
    assert largest == module_bytes if is_first else largest > module_bytes
    gathered.end_backward()
    log.free_all()
    assert {handle for handle, *_ in log.taken()} == set(alive)


def test_weights_are_prefetched_before_modules_without_weights_too():
    """A weight at a time: for the embedding's call and the three around it, and for each that is announced."""
    sizes = ZeroSettings(stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=1)
    recipe = Recipe(zero_stage=3, zero=sizes, loss=LossKind.FULL)
    model = prepared_model(LLAMA, recipe)
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=LossKind.FULL)
    gathered = engine_of(ParameterTable(model), recipe, num_ranks=2).gathered_weights(trace, NULL_SINK)
    assert gathered is not None
    gathered.fetch()
    assert len(gathered.gathers) == 3 + 1
    gathered.prefetch(2)
    assert len(gathered.gathers) == 2
    gathered.fetch(before=2)
    assert len(gathered.gathers) == 2 + 1


@pytest.mark.parametrize("loss", [LossKind.CHUNKED, LossKind.FULL])
def test_the_head_stays_whole_for_its_own_backward_where_prefetch_has_counted_on_it(loss):
    """The modules around the model, whose backward comes between, are steps of DeepSpeed's: as a rehearsal has it of
    Jais 2 with three layers and sizes like these, whose head takes 1,000 MB."""
    zero = ZeroSettings(
        stage3_param_persistence_threshold=NORM_NUMEL,
        stage3_prefetch_bucket_size=HEAD_NUMEL,
        stage3_max_reuse_distance=0,
    )
    recipe = Recipe(zero_stage=3, zero=zero, loss=loss)
    model = prepared_model(LLAMA, recipe)
    trace = model.run(Tape(), Batch(micro_batch=1, num_tokens=8), AttentionBackend(), loss=loss)
    gathered = engine_of(ParameterTable(model), recipe, num_ranks=2).gathered_weights(trace, NULL_SINK)
    assert gathered is not None
    for run, section in trace.forward():
        *events, last = of_weights(section.forward) or [None]
        for event in events:
            notify(gathered, event, run)
        before = gathered.live_bytes
        if last is not None:
            notify(gathered, last, run)
    assert gathered.live_bytes == before >= 2 * HEAD_NUMEL
