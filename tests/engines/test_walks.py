"""Each engine's walk and its model states in closed form say the same bytes."""

from typing import Any

from arriving_gradients import Gradients
from hypothesis import strategies as st

from laws import law
from planned import shortened
from vlmplan.architecture.prepare import prepared_model
from vlmplan.engines import ModelStates, engine_of
from vlmplan.engines.components import Components
from vlmplan.engines.parameters import ParameterTable
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload, OptimizerKind, Precision, ShardUnits, WeightDtype
from vlmplan.recipe.zero import ZeroSettings

MODELS = {
    "tinyllama-1.1b": {"num_hidden_layers": 2},
    "qwen2.5-0.5b": {"num_hidden_layers": 3},  # tied
}


def walked(
    table: ParameterTable, recipe: Recipe, num_ranks: int, room_bytes: int | None = None
) -> tuple[Components, ModelStates]:
    """What the walk holds while it loads, and at most, and its model states."""
    tracker = Gradients()
    engine = engine_of(table, recipe, num_ranks=num_ranks, sink=tracker, room_bytes=room_bytes)
    engine.load(is_on_cpu=False)
    load_peak = tracker.peak
    tracker.start_phase()
    engine.build()
    start, init_peak = tracker.now(), tracker.peak
    engine.use_first()
    engine.step(is_first=True)
    resident = tracker.now()
    engine.restore_secondary()
    used = tracker.now()
    tracker.arrive(engine)
    tracker.start_phase()
    engine.step(is_first=False)
    assert tracker.now() == resident
    secondary = Components(weights=used.weights - resident.weights)
    return load_peak, ModelStates(
        at_start=start, resident=resident, init_peak=init_peak, step_peak=tracker.peak, secondary=secondary
    )


FASTER = st.sampled_from([None, 16.0])
"""Ratios of learning rates: two parameter groups, or one."""
UNITS = [units for units in ShardUnits if units is not ShardUnits.ADAPTERS_TOO]
"""Gradients without a micro batch come in no order of units, by which a unit of an adapter gathers the one before."""
SHARDED_BY_TORCH = st.builds(
    Recipe,
    fsdp=st.just(True),
    reshard_after_forward=st.booleans(),
    sync_each_batch=st.booleans(),
    shard_units=st.sampled_from(UNITS),
    dp_shard_size=st.sampled_from([None, 2]),
    method=st.sampled_from([method for method in Method if method is not Method.LORA_8BIT]),  # which FSDP cannot gather
    shards_packed=st.booleans(),
    precision=st.sampled_from([Precision.BF16, Precision.BF16_PURE, Precision.FP32]),
    optimizer=st.sampled_from([OptimizerKind.ADAMW, OptimizerKind.SGD]),
    fuses_optimizer=st.booleans(),
).flatmap(
    lambda recipe: st.sampled_from(
        [recipe, recipe.with_changes(offload_optimizer=Offload.CPU, offload_params=Offload.CPU)]
    )
)


@st.composite
def recipes(draw: Any) -> Recipe:
    stage = draw(st.sampled_from([None, 0, 1, 2, 3]))
    if stage is None and draw(st.booleans()):
        return draw(SHARDED_BY_TORCH)
    hosts = st.sampled_from([Offload.NONE, Offload.CPU])
    precisions = [one for one in Precision if stage is not None or one is not Precision.FP16]
    kind = draw(st.sampled_from(OptimizerKind))
    method = draw(st.sampled_from([Method.FULL, Method.LORA] + [Method.QLORA] * (stage != 3)))
    offloads = stage in (1, 2, 3) and kind is not OptimizerKind.MUON
    hpz = draw(st.sampled_from([1, 2])) if stage == 3 else 1
    return Recipe(
        zero_stage=stage,
        gradient_as_bucket_view=draw(st.booleans()),
        method=method,
        train_embeddings=method is not Method.FULL and draw(st.booleans()),
        loraplus_lr_ratio=draw(FASTER) if method is not Method.FULL and kind is not OptimizerKind.MUON else None,
        precision=draw(st.sampled_from(precisions)),
        weight_dtype=draw(st.sampled_from([WeightDtype.TABLE, WeightDtype.FLOAT32])) if stage else WeightDtype.TABLE,
        optimizer=kind,
        fuses_optimizer=draw(st.booleans()),
        offload_optimizer=draw(hosts) if offloads else Offload.NONE,
        offload_params=draw(hosts) if stage == 3 and hpz == 1 else Offload.NONE,
        hpz=hpz,
        zero=ZeroSettings(
            reduce_bucket_size=draw(st.integers(10**5, 10**8)),
            overlap_comm=draw(st.booleans()),
            contiguous_gradients=draw(st.booleans()),
            round_robin_gradients=draw(st.booleans()),
            stage3_param_persistence_threshold=draw(st.sampled_from([0, 10**4, 10**6])),
            sub_group_size=draw(st.sampled_from([10**5, 10**7, 10**9])),
        ),
    )


SHARES = [(0.0, 0.0), (0.0, 0.4), (0.5, 0.7), (0.6, 1.0)]
"""Parts of the trained parameters to which no backward gives a gradient: from where to where."""


def table_of(alias: str, recipe: Recipe, idle: tuple[float, float]) -> ParameterTable:
    model = prepared_model(shortened(alias, **MODELS[alias]).config, recipe)
    trained = [(one.parameter, one.layer) for one in model.parameters() if one.parameter.requires_grad]
    first, last = (int(share * len(trained)) for share in idle)
    return ParameterTable(model, lambda: trained[:first] + trained[last:])


@law(
    alias=st.sampled_from(list(MODELS)),
    recipe=recipes(),
    num_ranks=st.sampled_from([1, 2, 4, 6]),
    idle=st.sampled_from(SHARES),
    room=st.sampled_from([None, 1.0, 1.5, 1.9, 2.5]),
    quick=50,
    thorough=150,
)
def test_states_in_closed_form_are_those_of_the_walk(
    alias: str, recipe: Recipe, num_ranks: int, idle: tuple[float, float], room: float | None
):
    """``room``: for how many copies of the weights the GPU has room."""
    if num_ranks % recipe.hpz:
        recipe = recipe.with_changes(hpz=1)
    table = table_of(alias, recipe, idle)
    room_bytes = None if room is None else round(room * table.total_bytes)
    engine = engine_of(table, recipe, num_ranks=num_ranks, room_bytes=room_bytes)
    closed, (load_peak, walk) = engine.states(), walked(table, recipe, num_ranks, room_bytes)
    assert walk.secondary == closed.secondary
    assert walk.resident == closed.resident
    assert walk.at_start == closed.at_start + closed.secondary
    assert walk.step_peak.total == closed.step_peak.total + closed.secondary.total
    assert (closed.init_peak + closed.secondary).total <= walk.init_peak.total
    # Adapters are whole from loading on until the engine of stage 3 shards them, and so is the first of them then.
    assert walk.init_peak.total <= max((closed.init_peak + closed.secondary).total, engine.loading_bound(closed))
    assert load_peak.total <= engine.loading_bound(closed)


def test_stage_3_makes_weights_that_are_loaded_in_float32_wide_before_it_casts_and_shards_them():
    recipe = Recipe(method=Method.FULL, zero_stage=3, offload_optimizer=Offload.CPU, offload_params=Offload.CPU)
    for dtype, num_bytes in ((WeightDtype.TABLE, 2), (WeightDtype.FLOAT32, 4 + 2)):
        given = recipe.with_changes(weight_dtype=dtype)
        table = table_of("tinyllama-1.1b", given, (0.0, 0.0))
        [load_peak, _] = walked(table, given, num_ranks=8)
        embedding = 32_000 * 2048
        shard = embedding * 2 // 8  # on its way to the host, where the whole weight is read into it
        assert load_peak.total == max(embedding * num_bytes, embedding * 2 + shard)


def test_stage_3_gathers_the_embedding_that_adapters_train_a_copy_of_while_that_is_made():
    table_and_peak = {}
    for trains in (False, True):
        recipe = Recipe(method=Method.LORA, zero_stage=3, offload_params=Offload.CPU, train_embeddings=trains)
        table = table_of("tinyllama-1.1b", recipe, (0.0, 0.0))
        table_and_peak[trains] = table, walked(table, recipe, num_ranks=2)[0].total
    (plain, _), (copied, peak) = table_and_peak[False], table_and_peak[True]
    embedding = 2 * 32_000 * 2048
    assert copied.trained_bytes - plain.trained_bytes == 2 * embedding  # the head's too
    adapters_before_the_last_copy = copied.trained_bytes - embedding
    assert peak == adapters_before_the_last_copy + embedding + embedding


def test_an_engine_with_its_optimizer_on_the_host_is_built_to_the_staging_buffer_that_stays():
    """On six ranks the buffer of the embeddings' gradient is more than a rank's slice of all weights."""
    recipe = Recipe(method=Method.FULL, zero_stage=1, offload_optimizer=Offload.CPU)
    table = table_of("qwen2.5-0.5b", recipe, (0.0, 0.0))
    engine = engine_of(table, recipe, num_ranks=6, room_bytes=table.total_bytes)
    embedding = 151_936 * 896
    assert engine.states().init_peak == engine.states().resident
    assert engine.states().resident.communication_buffers == embedding * 2
    assert walked(table, recipe, 6, table.total_bytes)[1].init_peak == engine.states().init_peak
