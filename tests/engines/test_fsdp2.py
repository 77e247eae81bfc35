"""FSDP2: what a rank holds and sends, layer by layer."""

import pytest

from planned import cluster, of_few_layers, workload
from vlmplan.engines import engine_of
from vlmplan.engines.collectives import CollectiveKind, StepPhase
from vlmplan.engines.fsdp2 import FullyShard
from vlmplan.engines.layer_groups import layer_groups
from vlmplan.estimation import Estimator
from vlmplan.memory.phases import Phase
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, Precision, ShardUnits

BF16, FP32 = 2, 4
LAYERS = 3
UNITS = (ShardUnits.ENDS_TOO, ShardUnits.LAYERS)
FSDP = Recipe(fsdp=True)
LLAMA = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), FSDP)
WIDTH, INNER, KEYS, VOCABULARY = 2048, 5632, 256, 32000
LAYER = 2 * WIDTH * WIDTH + 2 * KEYS * WIDTH + 3 * INNER * WIDTH + 2 * WIDTH
EMBEDDING = VOCABULARY * WIDTH
TAIL = WIDTH + VOCABULARY * WIDTH
PSI = LAYERS * LAYER + EMBEDDING + TAIL


def phases(num_ranks: int, **changes: object) -> dict[str, Phase]:
    recipe = FSDP.with_changes(**changes)
    found = LLAMA.timeline_of_tensors(recipe, cluster(num_gpus=num_ranks)).phases
    return {phase.name: phase for phase in found}


def test_layers_the_embedding_and_the_head_with_the_norm_are_groups_and_nothing_is_left_for_the_root():
    groups = layer_groups(LLAMA.table, FSDP, 4)
    sizes = [BF16 * EMBEDDING, *[BF16 * LAYER] * LAYERS, BF16 * TAIL]
    assert [group.whole_bytes for group in groups.layers] == sizes
    assert [group.stays_whole for group in groups.layers] == [False] * (1 + LAYERS) + [True]
    assert groups.root.whole_bytes == 0


def test_tied_weights_are_one_group_that_stays_whole():
    estimator = Estimator(workload(of_few_layers("qwen2.5-0.5b", LAYERS), seq_len=64), FSDP)
    groups = layer_groups(estimator.table, FSDP, 4)
    assert groups.embedding is None
    assert groups[groups.tail].stays_whole
    assert [entry.name for entry in groups[groups.tail].weights] == ["model.norm.weight", "model.embed_tokens.weight"]


def test_mixed_precision_keeps_float32_shards_and_states():
    """4Ψ/N weights, and 8Ψ/N of two moments once a step was made."""
    found = phases(4)
    assert found["init"].resident.total == FP32 * PSI // 4
    assert found["save"].resident.total == (FP32 + 2 * FP32) * PSI // 4


def test_pure_bf16_keeps_16_bits():
    estimator = Estimator(LLAMA.workload, FSDP.with_changes(precision=Precision.BF16_PURE))
    recipe = FSDP.with_changes(precision=Precision.BF16_PURE)
    found = {one.name: one for one in estimator.timeline_of_tensors(recipe, cluster(num_gpus=4)).phases}
    assert found["init"].resident.total == BF16 * PSI // 4
    assert found["save"].resident.total == (BF16 + 2 * BF16) * PSI // 4


def test_while_it_is_made_a_rank_has_one_whole_group_beside_its_shards():
    assert phases(4)["init"].peak.total == FP32 * PSI // 4 + FP32 * TAIL


def test_without_resharding_forward_leaves_all_weights_whole():
    kept, freed = phases(4, reshard_after_forward=False)["forward"], phases(4)["forward"]
    assert kept.resident.weights - freed.resident.weights == BF16 * EMBEDDING + LAYERS * BF16 * LAYER


def test_a_last_layer_and_a_root_that_stay_whole_are_what_forward_leaves():
    """The root has both ends and the norm; of the layers the last alone is not resharded."""
    kept, freed = (phases(4, shard_units=units)["forward"] for units in (ShardUnits.LAST_WHOLE, ShardUnits.LAYERS))
    assert kept.resident.weights - freed.resident.weights == BF16 * (PSI - (LAYERS - 1) * LAYER)


def test_narrow_shards_may_be_reduced_in_float32_and_are_as_large_as_ever():
    """The reduction's own result and what waits for it are wider, gradients at rest are not."""
    wide, narrow = (
        phases(4, precision=Precision.BF16_PURE, reduces_in_float32=wide)["backward"] for wide in (True, False)
    )
    assert wide.resident == narrow.resident
    assert wide.peak.communication_buffers > narrow.peak.communication_buffers


def test_without_sync_whole_gradients_wait_where_shards_would():
    """gΨ in place of 4Ψ/N, from the first micro batch of a step to the last."""
    every, last = (phases(4, grad_accum=2, sync_each_batch=sync)["forward"].resident for sync in (True, False))
    assert last.gradients - every.gradients == BF16 * PSI - FP32 * PSI // 4


def test_a_reduction_in_float32_has_whole_gradients_wait_in_float32():
    """4Ψ in place of 2Ψ."""
    wide, narrow = (
        phases(4, grad_accum=2, sync_each_batch=False, reduces_in_float32=wide)["forward"].resident
        for wide in (True, False)
    )
    assert wide.gradients - narrow.gradients == FP32 * PSI - BF16 * PSI


def test_on_the_host_nothing_stays_between_steps():
    found = phases(4, offload_optimizer=Offload.CPU, offload_params=Offload.CPU)
    assert found["save"].resident.total == found["init"].resident.total == 0


def test_a_weight_is_padded_to_rows_for_every_rank():
    """2048, 256, 5632 and 32000 rows on 3 ranks."""
    groups = layer_groups(LLAMA.table, FSDP, 3)
    rows = 2 * 683 * WIDTH + 2 * 86 * WIDTH + 2 * 1878 * WIDTH + 683 * INNER + 2 * 683
    assert groups.layers[1].shard_bytes == FP32 * rows


def test_every_group_but_the_tail_is_gathered_twice_and_all_are_reduced_once():
    recipe = FSDP.with_changes(grad_accum=5)
    trace = LLAMA.trace(recipe, (8, 0))
    engine = engine_of(LLAMA.table, recipe, num_ranks=4)
    assert isinstance(engine, FullyShard)
    found = {(one.kind, one.phase): (one.count, one.num_bytes) for one in engine.collectives(trace)}
    gather = CollectiveKind.ALL_GATHER
    assert found == {
        (gather, StepPhase.FORWARD): (5 * (LAYERS + 2), 5 * BF16 * PSI),
        (gather, StepPhase.BACKWARD): (5 * (LAYERS + 1), 5 * BF16 * (PSI - TAIL)),
        (CollectiveKind.REDUCE_SCATTER, StepPhase.BACKWARD): (5 * (LAYERS + 2), 5 * BF16 * PSI),
    }


def test_the_root_with_embedding_and_head_is_gathered_for_forward_and_for_backward():
    """Without resharding once, as all others."""
    together = FSDP.with_changes(shard_units=ShardUnits.LAYERS)
    groups = layer_groups(LLAMA.table, together, 4)
    assert [group.whole_bytes for group in groups.layers] == [BF16 * LAYER] * LAYERS
    assert groups.root.whole_bytes == BF16 * (EMBEDDING + TAIL)
    gathers = {(StepPhase.FORWARD, LAYERS + 1), (StepPhase.BACKWARD, LAYERS + 1)}
    for recipe, expected in (
        (together, gathers),
        (together.with_changes(reshard_after_forward=False), {(StepPhase.FORWARD, LAYERS + 1)}),
    ):
        engine = engine_of(LLAMA.table, recipe, num_ranks=4)
        found = list(engine.collectives(LLAMA.trace(recipe, (8, 0))))
        assert {(one.phase, one.count) for one in found if one.kind is CollectiveKind.ALL_GATHER} == expected
        assert {one.num_bytes for one in found} == {BF16 * PSI}


def test_backward_begins_with_the_gathered_root_beside_the_whole_one():
    """Nothing of it is there when forward has ended."""
    apart, together = (phases(4, shard_units=units)["forward"].resident.weights for units in UNITS)
    assert apart - together == BF16 * TAIL


@pytest.mark.parametrize(("method", "reduced"), [(Method.LORA, LAYERS), (Method.FULL, LAYERS + 2)])
def test_a_frozen_tower_in_front_is_gathered_once_more_for_nothing(method, reduced):
    """Its last layer is prefetched when the backward of the first trained layer begins; that the embedding before it is
    trained, which is reduced as the head, beside the last norm in the root, changes nothing of that."""
    recipe = FSDP.with_changes(method=method, train_vision=False, train_projector=False)
    estimator = Estimator(workload(of_few_layers("qwen2.5-vl-3b", LAYERS), seq_len=512), recipe)
    engine = engine_of(estimator.table, recipe, num_ranks=4)
    backward = [one for one in engine.collectives(estimator.trace(recipe, (8, 0))) if one.phase is StepPhase.BACKWARD]
    assert [one.count for one in backward] == [LAYERS + 1, reduced]


def test_matrices_of_adapters_that_are_units_are_gathered_and_reduced_one_by_one():
    """As many bytes as with their layers, in 2 collectives more for each adapted layer, which are seven of one."""
    lora = FSDP.with_changes(method=Method.LORA, shard_units=ShardUnits.LAYERS)
    estimator = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), lora)
    found = []
    for units in (ShardUnits.LAYERS, ShardUnits.ADAPTERS_TOO):
        recipe = lora.with_changes(shard_units=units)
        engine = engine_of(estimator.table, recipe, num_ranks=4)
        collectives = list(engine.collectives(estimator.trace(recipe, (8, 0))))
        found.append(({one.num_bytes for one in collectives}, [one.count for one in collectives]))
    together, apart = found
    assert together[0] == apart[0]
    assert together[1] == [LAYERS + 1, LAYERS + 1, LAYERS]
    assert apart[1] == [LAYERS + 1 + 2 * 7 * LAYERS, LAYERS + 1 + 2 * 7 * LAYERS, 2 * 7 * LAYERS]


@pytest.mark.parametrize(("units", "prefetched"), [(ShardUnits.LAYERS, 0), (ShardUnits.ADAPTERS_TOO, 13)])
def test_the_first_matrix_of_an_adapter_prefetches_the_layer_before(monkeypatch, units: ShardUnits, prefetched: int):
    """Where each is a group: behind the gradients of the 13 others of a layer. Else the layer itself does, at once."""
    recipe = FSDP.with_changes(method=Method.LORA, shard_units=units)
    estimator = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), recipe)
    engine = engine_of(estimator.table, recipe, num_ranks=4)
    trace = estimator.trace(recipe, (8, 0))
    assert isinstance(engine, FullyShard)
    engine.begin_forward(trace)
    last = next(run for run in trace.schedule[::-1] if run.layer == LAYERS - 1)
    members = engine.groups[engine.groups.begun_by(last)].ordinals
    arrived: list[int] = []
    at: list[int] = []
    monkeypatch.setattr(engine, "_prefetch_before", lambda number: at.append(len(arrived)))
    engine.enter(last, is_backward=True)
    for ordinal in members[::-1]:
        arrived.append(ordinal)
        engine.take_gradient(ordinal)
    assert at == [prefetched]


# -- copies of the model ---------------------------------------------------------------------------------------------


def test_of_copies_a_rank_holds_what_fewer_ranks_without_copies_hold():
    """2 copies on 4 ranks each."""
    copies, alone = phases(8, dp_shard_size=4), phases(4)
    for name in ("init", "save"):
        assert copies[name].resident == alone[name].resident


def test_gradients_that_are_summed_over_copies_wait_in_16_bit_for_the_end_of_backward():
    """2Ψ/4 beside their float32 shards; at the peak those of groups whose backward is over: all but the embedding."""
    waiting, gone = (phases(4 * copies, dp_shard_size=4)["backward"] for copies in (2, 1))
    assert waiting.resident.communication_buffers == 0
    more = waiting.peak.communication_buffers - gone.peak.communication_buffers
    assert BF16 * (PSI - EMBEDDING) // 4 <= more <= BF16 * PSI // 4


def test_what_is_summed_in_the_type_of_the_shards_is_the_gradient_itself_unless_there_is_an_earlier_one():
    """Then it waits for the end of backward, as a second gradient."""
    narrow = {"precision": Precision.BF16_PURE}
    for grad_accum, least in ((1, 0), (2, BF16 * LAYERS * LAYER // 4)):
        waiting, gone = (
            phases(4 * copies, dp_shard_size=4, grad_accum=grad_accum, **narrow)["backward"].peak for copies in (2, 1)
        )
        assert (waiting.total > gone.total) is (least > 0)
        assert waiting.gradients - gone.gradients >= least


def test_copies_gather_among_their_own_ranks_and_sum_what_is_left_of_gradients():
    recipe = FSDP.with_changes(dp_shard_size=4)
    trace = LLAMA.trace(recipe, (8, 0))
    found = engine_of(LLAMA.table, recipe, num_ranks=8).collectives(trace)
    groups = {(one.kind, one.group_size, one.ranks_apart) for one in found}
    assert groups == {
        (CollectiveKind.ALL_GATHER, 4, 1),
        (CollectiveKind.REDUCE_SCATTER, 4, 1),
        (CollectiveKind.ALL_REDUCE, 2, 4),
    }
    [scattered] = [one for one in found if one.kind is CollectiveKind.REDUCE_SCATTER]
    [summed] = [one for one in found if one.kind is CollectiveKind.ALL_REDUCE]
    assert (summed.count, summed.num_bytes) == (scattered.count, scattered.num_bytes // 4)


def test_one_copy_on_all_ranks_is_what_no_copies_are():
    assert phases(4, dp_shard_size=4) == phases(4)
