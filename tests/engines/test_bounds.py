"""The closed bound that a search prunes with stays above the timeline it stands for.

The timeline replays every tensor; the bound knows a few numbers of one replay. Models are shortened to a few layers:
dense with a tied and an untied head, and with either that has a bias, with images, with a vision tower that is trained
and sees none, and with experts, whose weights are far larger than other layers'.
"""

from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from laws import law
from planned import memory_timeline, shortened
from vlmplan.architecture.images import IMAGE_MODEL_TYPES
from vlmplan.engines import engine_of
from vlmplan.engines.bounds import gathered_bounds, peak_bound
from vlmplan.engines.profile import MicroBatchProfile, between, micro_batch_profile
from vlmplan.engines.zero3 import Zero3
from vlmplan.estimation import Estimator
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import FlatParameters, LossKind, Method, Offload, OptimizerKind, Precision, ShardUnits
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.workload import ModelFiles, Workload

LAYERS = {"smollm2-135m": 3, "tinyllama-1.1b": 2, "mixtral-8x7b": 2, "qwen2-vl-2b": 2, "qwen2-vl-2b, no images": 2}
LAYERS |= {"phi-1.5": 2, "ctrl": 3}
SIZES_OF_CTRL = {"n_embd": 512, "dff": 1024, "n_layer": 3, "n_head": 8, "vocab_size": 64000, "n_positions": 512}
CTRL = {"model_type": "ctrl", **SIZES_OF_CTRL}
CAPABILITY = (8, 0)
SHARDED_LOSSES = [loss for loss in LossKind if loss is not LossKind.UNSLOTH]  # a rule: of one process alone


@cache
def estimator(alias: str, method: Method, zero_stage: int | None, precision: Precision) -> Estimator:
    name, *no_images = alias.split(", ")
    files = ModelFiles(id=name, config=CTRL) if name == "ctrl" else shortened(name, num_hidden_layers=LAYERS[alias])
    images = 1 if files.model_type in IMAGE_MODEL_TYPES and not no_images else 0
    workload = Workload(model=files, seq_len=300, images_per_sample=images)
    return Estimator(workload, Recipe(method=method, zero_stage=zero_stage, precision=precision))


def estimator_of(alias: str, recipe: Recipe) -> Estimator:
    engine = 2 if recipe.casts_weights else None  # stages and FSDP2 hold weights alike
    return estimator(alias, recipe.method, engine, recipe.precision)


def bound(alias: str, recipe: Recipe, num_ranks: int) -> int:
    found = estimator_of(alias, recipe)
    engine = engine_of(found.table, recipe, num_ranks=num_ranks)
    profile = micro_batch_profile(found.trace(recipe, CAPABILITY))
    return peak_bound(engine, engine.states(), profile, accumulates=recipe.grad_accum > 1)


def timeline_peak(alias: str, recipe: Recipe, num_ranks: int) -> int:
    found = estimator_of(alias, recipe)
    return memory_timeline(found.table, found.trace(recipe, CAPABILITY), recipe, num_ranks=num_ranks).peak.total


ELEMENTS = st.one_of(st.just(0), st.integers(10**4, 3 * 10**9))
SIZES = st.builds(
    ZeroSettings,
    reduce_bucket_size=st.integers(10**5, 5 * 10**8),
    overlap_comm=st.booleans(),
    contiguous_gradients=st.booleans(),
    stage3_prefetch_bucket_size=ELEMENTS,
    stage3_max_live_parameters=ELEMENTS,
    stage3_max_reuse_distance=ELEMENTS,
    stage3_param_persistence_threshold=st.sampled_from([0, 10**4, 10**6]),
    memory_efficient_linear=st.booleans(),
)


@st.composite
def sharded_recipes(draw: st.DrawFn) -> Recipe:
    stage = draw(st.integers(0, 3))
    offloads = draw(st.booleans()) if stage >= 2 else False
    host = Offload.CPU if offloads else Offload.NONE
    uses_muon = stage > 0 and not offloads and draw(st.booleans())
    method = draw(st.sampled_from([Method.FULL, Method.LORA] if stage == 3 else list(Method)))
    return Recipe(
        optimizer=OptimizerKind.MUON if uses_muon else OptimizerKind.ADAMW,
        method=method,
        loraplus_lr_ratio=None if uses_muon or method is Method.FULL else draw(st.sampled_from([None, 16.0])),
        zero_stage=stage,
        offload_optimizer=host,
        offload_params=host if stage == 3 else Offload.NONE,
        hpz=draw(st.sampled_from([1, 2])) if stage == 3 and not offloads else 1,
        micro_batch=draw(st.integers(1, 3)),
        grad_accum=draw(st.integers(1, 2)),
        activation_checkpointing=draw(st.booleans()),
        loss=draw(st.sampled_from(SHARDED_LOSSES)),
        zero=draw(SIZES),
    )


@law(
    alias=st.sampled_from(list(LAYERS)),
    recipe=sharded_recipes(),
    num_ranks=st.sampled_from([1, 2, 8]),
    quick=25,
    thorough=150,
)
def test_bound_under_zero_is_never_below_the_timeline(alias: str, recipe: Recipe, num_ranks: int):
    assert bound(alias, recipe, num_ranks) >= timeline_peak(alias, recipe, num_ranks)


@law(
    alias=st.sampled_from(list(LAYERS)),
    method=st.sampled_from(Method),
    recipe=st.builds(
        Recipe,
        fsdp=st.just(True),
        shards_packed=st.booleans(),
        reshard_after_forward=st.booleans(),
        sync_each_batch=st.booleans(),
        shard_units=st.sampled_from(ShardUnits),
        dp_shard_size=st.sampled_from([None, None, 2, 4]),
        precision=st.sampled_from([Precision.BF16, Precision.BF16_PURE]),
        reduces_in_float32=st.booleans(),
        micro_batch=st.integers(1, 3),
        grad_accum=st.integers(1, 2),
        activation_checkpointing=st.booleans(),
        loss=st.sampled_from(SHARDED_LOSSES),
    ),
    offloads=st.booleans(),
    num_ranks=st.sampled_from([1, 2, 3, 8]),
    quick=10,
    thorough=100,
)
def test_bound_under_fsdp2_is_never_below_the_timeline(
    alias: str, method: Method, recipe: Recipe, offloads: bool, num_ranks: int
):
    host = Offload.CPU if offloads else Offload.NONE
    recipe = recipe.with_changes(method=method, offload_optimizer=host, offload_params=host)
    assert bound(alias, recipe, num_ranks) >= timeline_peak(alias, recipe, num_ranks)


@law(
    alias=st.sampled_from(list(LAYERS)),
    recipe=st.builds(
        Recipe,
        fsdp=st.just(True),
        method=st.sampled_from([Method.FULL, Method.LORA, Method.QLORA]),
        shard_units=st.just(ShardUnits.LAYERS),
        flat_parameters=st.sampled_from([one for one in FlatParameters if one is not FlatParameters.NONE]),
        prefetches_forward=st.booleans(),
        uses_orig_params=st.booleans(),
        dp_shard_size=st.sampled_from([None, None, 2, 4]),
        reshard_after_forward=st.booleans(),
        reduces_in_float32=st.booleans(),
        sync_each_batch=st.booleans(),
        micro_batch=st.integers(1, 3),
        grad_accum=st.integers(1, 3),
        activation_checkpointing=st.booleans(),
        loss=st.sampled_from(SHARDED_LOSSES),
    ),
    offloads=st.booleans(),
    num_ranks=st.sampled_from([2, 3, 8]),
    quick=5,
    thorough=100,
)
def test_bound_under_fsdp1_is_never_below_the_timeline(alias: str, recipe: Recipe, offloads: bool, num_ranks: int):
    host = Offload.CPU if offloads else Offload.NONE
    recipe = recipe.with_changes(offload_optimizer=host, offload_params=host)
    assert bound(alias, recipe, num_ranks) >= timeline_peak(alias, recipe, num_ranks)


def test_gradients_that_wait_outside_the_bucket_are_bounded_by_its_size_and_not_by_the_largest():
    recipe = Recipe(zero_stage=3, zero=ZeroSettings(reduce_bucket_size=219_162_624, contiguous_gradients=False))
    assert bound("tinyllama-1.1b", recipe, 1) >= timeline_peak("tinyllama-1.1b", recipe, 1)
    found = estimator_of("tinyllama-1.1b", recipe)
    trace, engine = found.trace(recipe, CAPABILITY), engine_of(found.table, recipe, num_ranks=1)
    assert isinstance(engine, Zero3)
    most, _ = gathered_bounds(engine, engine.states(), trace)
    phases = memory_timeline(found.table, trace, recipe, num_ranks=1).phases
    assert most >= max(phase.peak.total for phase in phases if phase.name in ("forward", "backward"))


@law(
    alias=st.sampled_from(list(LAYERS)),
    recipe=sharded_recipes().filter(lambda recipe: recipe.zero_stage == 3),
    num_ranks=st.sampled_from([1, 2, 8]),
    quick=25,
    thorough=100,
)
def test_timeline_of_stage_3_lies_between_what_each_section_takes_with_the_fewest_and_the_most_gathered_weights(
    alias: str, recipe: Recipe, num_ranks: int
):
    assume(num_ranks % recipe.hpz == 0)  # a rule refuses others
    found = estimator_of(alias, recipe)
    trace, engine = found.trace(recipe, CAPABILITY), engine_of(found.table, recipe, num_ranks=num_ranks)
    assert isinstance(engine, Zero3)
    most, least = gathered_bounds(engine, engine.states(), trace)
    timeline = memory_timeline(found.table, trace, recipe, num_ranks=num_ranks)
    forward_and_backward = max(phase.peak.total for phase in timeline.phases if phase.name in ("forward", "backward"))
    assert least <= forward_and_backward <= most


@law(
    alias=st.sampled_from(list(LAYERS)),
    method=st.sampled_from(Method),
    precision=st.sampled_from(Precision),
    grad_accum=st.integers(1, 2),
    checkpoints=st.booleans(),
    fuses=st.booleans(),
    caches_casts=st.booleans(),
    loss=st.sampled_from(LossKind),
    quick=25,
    thorough=40,
)
def test_bound_of_plain_pytorch_is_never_below_the_timeline(
    alias, method, precision, grad_accum, checkpoints, fuses, caches_casts, loss
):
    recipe = Recipe(
        method=method,
        precision=precision,
        grad_accum=grad_accum,
        activation_checkpointing=checkpoints,
        fuses_optimizer=fuses,
        caches_casts=caches_casts,
        loss=loss,
    )
    assert bound(alias, recipe, 1) >= timeline_peak(alias, recipe, 1)


@pytest.mark.parametrize("stage", [0, 2])
def test_what_a_loop_holds_of_a_micro_batch_through_the_step_is_beside_the_update(stage: int):
    """OpenRLHF's loops hold the logits until the next micro batch: 32,000 of 300 tokens each, in float32."""
    kept = Recipe(zero_stage=stage, loss=LossKind.OPENRLHF)
    profile = micro_batch_profile(estimator_of("mixtral-8x7b", kept).trace(kept, CAPABILITY))
    assert profile.kept_bytes == 300 * 32_000 * 4
    assert bound("mixtral-8x7b", kept, 2) >= timeline_peak("mixtral-8x7b", kept, 2)


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("alias", list(LAYERS))
def test_bound_of_a_plain_step_is_at_most_one_gradient_above_the_timeline(alias: str, checkpoints: bool):
    recipe = Recipe(activation_checkpointing=checkpoints)
    largest = estimator_of(alias, recipe).table.largest_trained * 4
    assert bound(alias, recipe, 1) <= timeline_peak(alias, recipe, 1) + largest


def test_a_model_larger_than_any_gpu_of_it_is_not_held_whole_while_it_loads_under_stage_3():
    # Otherwise no model that needs stage 3 would ever be found.
    recipe = Recipe(
        method=Method.LORA,
        zero_stage=3,
        zero=ZeroSettings(
            reduce_bucket_size=10**7,
            stage3_prefetch_bucket_size=0,
            stage3_max_live_parameters=0,
            stage3_max_reuse_distance=0,
        ),
    )
    table = estimator_of("tinyllama-1.1b", recipe).table
    assert bound("tinyllama-1.1b", recipe, 8) < table.total_bytes
    assert bound("tinyllama-1.1b", recipe.with_changes(zero_stage=2), 8) > table.total_bytes


def test_what_ranks_share_makes_the_bound_smaller_with_every_rank():
    for stage in (1, 2, 3):
        bounds = [bound("tinyllama-1.1b", Recipe(zero_stage=stage), ranks) for ranks in (2, 4, 8, 16)]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] > bounds[-1]


def test_views_of_weights_count_where_zero_3_takes_the_weights_away():
    torchs = Recipe(zero_stage=3, activation_checkpointing=False)
    torchs = torchs.with_changes(zero=ZeroSettings(memory_efficient_linear=False))
    deepspeeds = torchs.with_changes(zero=ZeroSettings(memory_efficient_linear=True))
    found = estimator_of("tinyllama-1.1b", torchs)
    held, none = (micro_batch_profile(found.trace(recipe, CAPABILITY)).held_bytes for recipe in (torchs, deepspeeds))
    width, inner, layers, kv_width = 2048, 5632, 2, 4 * 64
    assert held == 2 * layers * (2 * width * width + 2 * width * kv_width + 3 * width * inner)
    assert none == 0


PROFILES = st.builds(MicroBatchProfile, **dict.fromkeys(MicroBatchProfile._fields, st.integers(0, 2**45)))


@given(low=PROFILES, more=PROFILES, fraction=st.floats(0, 1))
def test_profile_between_two_others_lies_between_them(low: MicroBatchProfile, more: MicroBatchProfile, fraction: float):
    names = ("forward_peak", "dropped_peak", "kept_peak", "norm_peak", "kept_bytes")
    others = ("held_bytes", "unreleased_bytes", "recomputed_bytes", "gradient_bytes")
    most = {name: max(getattr(low, name), getattr(more, name)) for name in others}
    high = MicroBatchProfile(**{name: getattr(low, name) + getattr(more, name) for name in names}, **most)
    middle = between(low, high, fraction)
    for name in names:
        assert getattr(low, name) <= getattr(middle, name) <= getattr(high, name)
    assert between(low, high, 0.0) == low._replace(**most)
    assert between(low, high, 1.0) == high
