"""FSDP1: what a rank holds and sends, unit by unit."""

import pytest

from planned import cluster, of_few_layers, workload
from vlmplan.engines import engine_of
from vlmplan.engines.collectives import CollectiveKind, StepPhase
from vlmplan.engines.events import Sink, Stream
from vlmplan.engines.flat_units import flat_units
from vlmplan.errors import InputError
from vlmplan.estimation import Estimator
from vlmplan.memory.phases import Phase
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, Method, Offload, Precision, ShardUnits
from vlmplan.recipe.evaluation import Evaluation

BF16, FP32 = 2, 4
LAYERS = 3
FLAT = Recipe(fsdp=True, flat_parameters=FlatParameters.ON_DEMAND, shard_units=ShardUnits.LAYERS)
LLAMA = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), FLAT)
WIDTH, INNER, KEYS, VOCABULARY = 2048, 5632, 256, 32000
LAYER = 2 * WIDTH * WIDTH + 2 * KEYS * WIDTH + 3 * INNER * WIDTH + 2 * WIDTH
ROOT = 2 * VOCABULARY * WIDTH + WIDTH
PSI = LAYERS * LAYER + ROOT


def phases(num_ranks: int, **changes: object) -> dict[str, Phase]:
    recipe = FLAT.with_changes(**changes)
    found = LLAMA.timeline_of_tensors(recipe, cluster(num_gpus=num_ranks)).phases
    return {phase.name: phase for phase in found}


def test_shards_and_states_are_float32_and_gradients_stay_until_the_next_forward():
    """4Ψ/N weights, 8Ψ/N of two moments, and 4Ψ/N of gradients that the optimizer has let go."""
    found = phases(4)
    assert found["init"].resident.total == FP32 * PSI // 4
    assert found["save"].resident.total == (FP32 + 2 * FP32 + FP32) * PSI // 4


def test_forward_begins_beside_the_gradients_of_the_step_before():
    """Shards in float32 of two ranks are more than what it gathers and keeps."""
    found = phases(2)
    assert found["forward"].peak == found["save"].resident


def test_flat_parameters_of_the_optimizer_lose_their_gradients_with_the_step():
    assert phases(4, uses_orig_params=False)["save"].resident.total == (FP32 + 2 * FP32) * PSI // 4


def test_an_evaluation_leaves_no_gradients_to_the_checkpoint():
    """Its forward lets go those of the step before, and leaves the root whole."""
    save = phases(4, evaluation=Evaluation(batch=1))["save"].resident
    assert (save.gradients, save.weights) == (0, FP32 * PSI // 4 + BF16 * ROOT)
    assert phases(4, evaluation=Evaluation(batch=1))["save"].peak.gradients == 0


def test_while_it_is_made_the_root_is_there_twice_beside_the_shards():
    assert phases(4)["init"].peak.total == FP32 * PSI // 4 + 2 * FP32 * ROOT


def test_the_root_is_whole_when_forward_ends_and_everything_that_is_not_resharded():
    freed, kept = (phases(4, reshard_after_forward=reshards)["forward"].resident for reshards in (True, False))
    assert freed.weights == FP32 * PSI // 4 + BF16 * ROOT
    assert kept.weights - freed.weights == BF16 * LAYERS * LAYER


def test_backward_ends_with_gradients_of_the_root_and_with_the_flat_one_of_them():
    """The root is whole still, and every gradient that has been reduced is in shards."""
    reduced = FP32 * LAYERS * LAYER // 4
    assert phases(4)["backward"].peak.gradients == reduced + 2 * BF16 * ROOT


def test_a_reduction_in_float32_casts_a_whole_flat_gradient_beside_itself():
    """The root's, which is no longer whole then; it is reduced into what stays."""
    found = phases(4, reduces_in_float32=True)["backward"].peak
    assert found.communication_buffers == FP32 * ROOT
    assert found.gradients == FP32 * PSI // 4 + BF16 * ROOT
    assert found.weights == FP32 * PSI // 4


@pytest.mark.parametrize(("ahead", "expected"), [(False, [2, 1, 0]), (True, [2, 1])])
def test_a_layer_gathered_ahead_in_forward_ends_one_layer_later_in_backward(monkeypatch, ahead, expected):
    """The first one with the root, when backward is over."""
    recipe = FLAT.with_changes(prefetches_forward=ahead)
    engine, trace = engine_of(LLAMA.table, recipe, num_ranks=4), LLAMA.trace(recipe, (8, 0))
    ended: list[int] = []
    monkeypatch.setattr(engine, "_end_unit", ended.append)
    engine.begin_forward(trace)
    for run in reversed(trace.schedule):
        engine.leave(run, is_backward=True)
    assert ended == [2, 1, 0]  # torch knows the order of layers behind the first backward
    engine.end_backward()
    ended.clear()
    engine.begin_forward(trace)
    for run in reversed(trace.schedule):
        engine.leave(run, is_backward=True)
    assert ended == expected


def test_whole_gradients_wait_for_the_last_micro_batch_in_the_type_of_the_computation():
    every, last = (phases(4, grad_accum=2, sync_each_batch=sync)["forward"].resident for sync in (True, False))
    assert last.gradients - every.gradients == BF16 * PSI - FP32 * PSI // 4


def test_on_the_host_nothing_but_the_root_outlives_forward():
    found = phases(4, offload_optimizer=Offload.CPU, offload_params=Offload.CPU)
    assert found["save"].resident.total == found["init"].resident.total == 0
    assert found["forward"].resident.weights == BF16 * ROOT


@pytest.mark.parametrize("uses_orig_params", [True, False])
def test_a_shard_that_comes_from_the_host_as_it_is_stays_with_what_the_optimizer_has(uses_orig_params: bool):
    """Weights of the optimizer are views of it until the unit is sharded again."""
    away = {"offload_optimizer": Offload.CPU, "offload_params": Offload.CPU, "precision": Precision.BF16_PURE}
    recipe = FLAT.with_changes(uses_orig_params=uses_orig_params, **away)
    pure = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), recipe)
    forward = pure.timeline_of_tensors(recipe, cluster(num_gpus=4)).phases[2]
    assert forward.name == "forward"
    assert forward.resident.weights == BF16 * ROOT + uses_orig_params * BF16 * ROOT // 4


@pytest.mark.parametrize("uses_orig_params", [True, False])
def test_a_flat_parameter_is_as_long_as_equal_shards_where_the_optimizer_has_the_weights(uses_orig_params: bool):
    """Its gradient too, which is padded in a copy elsewhere."""
    recipe = FLAT.with_changes(uses_orig_params=uses_orig_params, precision=Precision.BF16_PURE)
    table = Estimator(workload(of_few_layers("qwen2.5-0.5b", LAYERS), seq_len=64), recipe).table
    layer = flat_units(table, recipe, 5)[0]
    assert layer.weights_numel % 5 == 4
    assert layer.padded_numel == layer.weights_numel + 1
    assert layer.numel == (layer.padded_numel if uses_orig_params else layer.weights_numel)
    views = [numel for rank in range(5) for _, numel in layer.own_numels(rank)]
    assert sum(views) == layer.weights_numel


@pytest.mark.parametrize("wide", [False, True])
def test_layers_are_gathered_twice_and_the_root_once_and_all_are_reduced_once(wide: bool):
    recipe = FLAT.with_changes(grad_accum=5, sync_each_batch=False, reduces_in_float32=wide)
    engine = engine_of(LLAMA.table, recipe, num_ranks=4)
    found = {
        (one.kind, one.phase): (one.count, one.num_bytes) for one in engine.collectives(LLAMA.trace(recipe, (8, 0)))
    }
    gather = CollectiveKind.ALL_GATHER
    assert found == {
        (gather, StepPhase.FORWARD): (5 * (LAYERS + 1), 5 * BF16 * PSI),
        (gather, StepPhase.BACKWARD): (5 * LAYERS, 5 * BF16 * LAYERS * LAYER),
        (CollectiveKind.REDUCE_SCATTER, StepPhase.BACKWARD): (LAYERS + 1, (FP32 if wide else BF16) * PSI),
    }


@pytest.mark.parametrize("uses_orig_params", [True, False])
def test_the_first_gradient_that_waits_is_given_to_each_weight_in_place_of_an_empty_one(uses_orig_params: bool):
    """A shard of each unit in float32, weight by weight; what later micro batches add to is given already."""
    recipe = FLAT.with_changes(grad_accum=3, sync_each_batch=False, uses_orig_params=uses_orig_params)
    empty: list[int] = []

    class Empty(Sink):
        def transient(self, component, sizes, stream=Stream.DEFAULT):
            empty.extend(sizes)

    engine = engine_of(LLAMA.table, recipe, num_ranks=4, sink=Empty())
    trace, found = LLAMA.trace(recipe, (8, 0)), []
    for number in range(2):
        engine.begin_micro_batch(accumulates=number > 0, is_last=False)
        engine.begin_forward(trace)
        empty.clear()
        for ordinal in LLAMA.table.reduced_ordinals:
            engine.take_gradient(ordinal)
        engine.end_backward()
        found.append(sum(empty))
    assert found == [FP32 * PSI // 4 if uses_orig_params else 0, 0]


def test_what_is_not_resharded_is_gathered_once_in_a_step_that_reduces_once():
    recipe = FLAT.with_changes(grad_accum=5, sync_each_batch=False, reshard_after_forward=False)
    engine = engine_of(LLAMA.table, recipe, num_ranks=4)
    gathers = [one for one in engine.collectives(LLAMA.trace(recipe, (8, 0))) if one.kind is CollectiveKind.ALL_GATHER]
    assert [(one.phase, one.count) for one in gathers] == [(StepPhase.FORWARD, LAYERS + 1)]


ADAPTED = FLAT.with_changes(method=Method.LORA, lora_rank=16)
LORA = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), ADAPTED)
FACTORS = 16 * (4 * WIDTH + 2 * (WIDTH + KEYS) + 3 * (WIDTH + INNER))


def lora_phases(**changes: object) -> dict[str, Phase]:
    found = LORA.timeline_of_tensors(ADAPTED.with_changes(**changes), cluster(num_gpus=4)).phases
    return {phase.name: phase for phase in found}


def test_frozen_shards_have_16_bit_and_adapters_float32_with_their_states_and_gradients():
    found = lora_phases()
    assert found["init"].resident.total == BF16 * PSI // 4 + FP32 * LAYERS * FACTORS // 4
    assert found["save"].resident.total - found["init"].resident.total == 3 * FP32 * LAYERS * FACTORS // 4


def test_frozen_layers_are_whole_while_they_run_and_the_root_to_the_end_of_backward():
    found = lora_phases()
    at_rest = found["init"].resident.weights
    assert found["forward"].resident.weights == at_rest + BF16 * ROOT
    assert found["backward"].resident.weights == at_rest


def test_each_factor_is_gathered_and_reduced_by_itself():
    engine = engine_of(LORA.table, ADAPTED.with_changes(activation_checkpointing=False), num_ranks=4)
    found = {
        (one.kind, one.phase): (one.count, one.num_bytes) for one in engine.collectives(LORA.trace(ADAPTED, (8, 0)))
    }
    gather = CollectiveKind.ALL_GATHER
    assert found == {
        (gather, StepPhase.FORWARD): (LAYERS * (1 + 7 * 2) + 1, BF16 * (PSI + LAYERS * FACTORS)),
        (gather, StepPhase.BACKWARD): (LAYERS * (1 + 7 * 2), BF16 * LAYERS * (LAYER + FACTORS)),
        (CollectiveKind.REDUCE_SCATTER, StepPhase.BACKWARD): (LAYERS * 7 * 2, BF16 * LAYERS * FACTORS),
    }


@pytest.mark.parametrize(("targets", "expected"), [("all-linear", 1 + 2 * 7 * 2 - 1), ("attention", 1 + 2 * 4 * 2)])
def test_a_layer_that_runs_again_gathers_a_factor_once_whose_backward_asks_for_it(targets: str, expected: int):
    """The last projection's second one, where nothing behind it asks first, as an MLP does behind attention."""
    recipe = ADAPTED.with_changes(lora_targets=targets)
    estimator = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=64), recipe)
    found = engine_of(estimator.table, recipe, num_ranks=4).collectives(estimator.trace(recipe, (8, 0)))
    [again] = [one.count for one in found if (one.kind, one.phase) == (CollectiveKind.ALL_GATHER, StepPhase.BACKWARD)]
    assert again == LAYERS * expected


def copying_forward(**changes: object) -> Phase:
    recipe = ADAPTED.with_changes(activation_checkpointing=False, **changes)
    estimator = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=256), recipe)
    phases = estimator.timeline_of_tensors(recipe, cluster(num_gpus=4)).phases
    return next(phase for phase in phases if phase.name == "forward")


@pytest.mark.parametrize("changes", [{"uses_orig_params": False}, {"prefetches_forward": True}])
def test_later_forwards_copy_nothing_that_adapters_get(changes: dict[str, bool]):
    """peft sees what has been gathered. So q, k and v read one tensor, gate and up another, and o what attention
    keeps."""
    fewer = copying_forward().resident.activations - copying_forward(**changes).resident.activations
    assert fewer == 256 * BF16 * LAYERS * 4 * WIDTH


def test_without_original_parameters_the_first_forward_copies_before_there_are_states():
    """peft sees the weights as they were loaded, in float32, until they are gathered."""
    always, at_first = copying_forward().peak, copying_forward(uses_orig_params=False).peak
    assert always.optimizer_states > at_first.optimizer_states == 0
    assert at_first.activations == always.activations


def test_frozen_weights_in_a_unit_with_trained_ones_have_gradients_and_no_states():
    """The root is float32 and has a whole gradient; layers of the frozen tower are as they are loaded, and without."""
    recipe = FLAT.with_changes(train_vision=False)
    seeing = Estimator(workload(of_few_layers("qwen2-vl-2b", 2)), recipe)
    root = flat_units(seeing.table, recipe, 4).root
    trained = sum([entry.parameter.numel for entry in root.weights if entry.parameter.is_updated])
    layers = [flat_units(seeing.table, recipe, 4)[at] for at in range(len(seeing.table.stacks_by_label) * 2)]
    frozen, others = ([unit for unit in layers if bool(unit.ordinals) is has] for has in (False, True))
    assert 0 < trained < root.weights_numel
    assert seeing.table.num_trained == trained + sum(unit.weights_numel for unit in others)
    assert sum(map(len, (unit.own_numels(0) for unit in frozen))) > 0
    found = {phase.name: phase for phase in seeing.timeline_of_tensors(recipe, cluster(num_gpus=4)).phases}
    shards = FP32 * (root.shard_numel + sum(unit.shard_numel for unit in others))
    assert found["init"].resident.total == shards + BF16 * sum(unit.shard_numel for unit in frozen)
    assert found["save"].resident.gradients == shards
    assert found["save"].resident.optimizer_states < 2 * shards


def test_frozen_parts_beside_trained_ones_need_original_parameters():
    recipe = FLAT.with_changes(train_vision=False, uses_orig_params=False)
    with pytest.raises(InputError, match="its root has both: torch stops; train all parts, give --orig-params"):
        Estimator(workload(of_few_layers("qwen2-vl-2b", 1)), recipe)


def whole_layers(recipe: Recipe, phase: str, *, seq_len: int) -> int:
    """Layers of tinyllama that are whole, beside the root, at the highest moment of a phase."""
    estimator = Estimator(workload(of_few_layers("tinyllama-1.1b", LAYERS), seq_len=seq_len), recipe)
    phases = {one.name: one for one in estimator.timeline_of_tensors(recipe, cluster(num_gpus=4)).phases}
    return (phases[phase].peak.weights - phases["init"].resident.weights - BF16 * ROOT) // (BF16 * LAYER)


def test_the_last_adapter_of_a_layer_gathers_the_next_one_beside_what_runs_behind_it():
    """The MLP, whose activations are the most, runs behind adapters of attention."""
    recipe = ADAPTED.with_changes(lora_targets="attention")
    assert whole_layers(recipe, "forward", seq_len=1024) == 0  # logits are more, once no layer is whole
    assert whole_layers(recipe.with_changes(prefetches_forward=True), "forward", seq_len=1024) == 2


def test_a_frozen_layer_is_whole_until_the_one_before_it_is_in_backward():
    """Both have a hook on the tensor between them: that of the layer that made it was there first, and gathers."""
    recipe = ADAPTED.with_changes(activation_checkpointing=False)
    assert recipe.flat_parameters is FlatParameters.ON_DEMAND
    assert whole_layers(recipe, "backward", seq_len=64) == 2


@pytest.mark.parametrize(("uses_orig_params", "first"), [(True, VOCABULARY * WIDTH), (False, ROOT // 2)])
def test_the_optimizer_has_its_states_in_the_order_of_parameters(uses_orig_params: bool, first: int):
    """The embedding is before the layers, though the root is made last; as one flat parameter it is before theirs."""
    engine = engine_of(LLAMA.table, FLAT.with_changes(uses_orig_params=uses_orig_params), num_ranks=2)
    assert engine._shapes[0] == (first,)  # pyright: ignore[reportAttributeAccessIssue, reportPrivateUsage]


ALONE = FLAT.with_changes(uses_orig_params=False)


@pytest.mark.parametrize(
    ("model", "changes", "images"),
    [
        ("qwen2-vl-2b", {}, 1),
        ("qwen2-vl-2b", {"shard_units": ShardUnits.LANGUAGE_LAYERS}, 0),
        ("qwen2-vl-2b", {"shard_units": ShardUnits.LANGUAGE_LAYERS, "uses_orig_params": True}, 1),
        ("qwen2-vl-2b", {"shard_units": ShardUnits.LANGUAGE_LAYERS, "method": Method.LORA, "train_vision": True}, 1),
        ("smolvlm2-256m", {"method": Method.LORA}, 1),
        ("smolvlm2-256m", {"precision": Precision.BF16_PURE}, 1),
    ],
)
def test_without_original_parameters_a_tower_with_a_unit_inside_says_its_type(model, changes, images):
    recipe = ALONE.with_changes(**changes)
    seeing = Estimator(workload(of_few_layers(model, 1), images_per_sample=images, seq_len=2048), recipe)
    assert seeing.timeline_of_tensors(recipe, cluster(num_gpus=2)).peak.total > 0


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        ("llama-3.2-11b-vision", {}, "asks the vision tower for its type, in which no layer is a unit"),
        ("qwen2-vl-2b", {"shard_units": ShardUnits.LANGUAGE_LAYERS}, "leaves no parameter; give --orig-params"),
        ("smolvlm2-256m", {}, "casts images to the type of its first parameter"),
    ],
)
def test_without_original_parameters_forward_asks_in_vain(model, changes, said):
    with pytest.raises(InputError, match=said):
        Estimator(workload(model, seq_len=2048), ALONE.with_changes(**changes))


# -- copies of the model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"precision": Precision.BF16_PURE}, {"sync_each_batch": False}])
def test_of_copies_a_rank_holds_what_fewer_ranks_without_copies_hold(changes: dict[str, object]):
    """2 copies on 4 ranks each, at every moment: nothing waits for what is summed, as under FSDP2."""
    assert phases(8, dp_shard_size=4, grad_accum=2, **changes) == phases(4, grad_accum=2, **changes)


@pytest.mark.parametrize(("precision", "stream"), [(Precision.BF16, Stream.SUM), (Precision.FP32, Stream.REDUCTION)])
def test_a_gradient_that_is_summed_over_copies_is_cast_on_the_stream_of_that(precision: Precision, stream: Stream):
    """In float32 it is the tensor that the reduce-scatter made."""
    recipe, streams = FLAT.with_changes(precision=precision, dp_shard_size=4), set[Stream]()

    class Streams(Sink):
        def allocate(self, owner, component, num_bytes, stream=Stream.DEFAULT):
            if isinstance(owner, tuple) and owner[0] == "gradients":
                streams.add(stream)

    engine_of(LLAMA.table, recipe, num_ranks=8, sink=Streams()).step(is_first=True)
    assert streams == {stream}


@pytest.mark.parametrize("sync_each_batch", [True, False])
def test_copies_gather_among_their_own_ranks_and_sum_what_is_left_of_gradients(sync_each_batch: bool):
    recipe = FLAT.with_changes(dp_shard_size=4, grad_accum=5, sync_each_batch=sync_each_batch)
    found = list(engine_of(LLAMA.table, recipe, num_ranks=8).collectives(LLAMA.trace(recipe, (8, 0))))
    groups = {(one.kind, one.group_size, one.ranks_apart) for one in found}
    assert groups == {
        (CollectiveKind.ALL_GATHER, 4, 1),
        (CollectiveKind.REDUCE_SCATTER, 4, 1),
        (CollectiveKind.ALL_REDUCE, 2, 4),
    }
    [summed] = [one for one in found if one.kind is CollectiveKind.ALL_REDUCE]
    times = 5 if sync_each_batch else 1
    assert (summed.phase, summed.count) == (StepPhase.BACKWARD, times * (LAYERS + 1))
    assert summed.num_bytes == times * BF16 * PSI // 4
