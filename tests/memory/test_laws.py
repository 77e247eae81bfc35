"""Laws that hold for every model and recipe, whatever the figures are."""

from functools import cache
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from laws import law
from planned import cluster, memory_timeline, shortened
from vlmplan.engines import engine_of
from vlmplan.engines.components import Components
from vlmplan.engines.parameters import sharded_elements
from vlmplan.engines.partitions import partition_of
from vlmplan.errors import VlmplanError
from vlmplan.estimation import Estimate, Estimator
from vlmplan.memory.timeline import StartedRun
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import LossKind, Method, Offload, OptimizerKind, Precision
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.rules import check, model_facts
from vlmplan.workload import ModelFiles, Workload

NOTHING_KEPT = ZeroSettings(stage3_param_persistence_threshold=0)
SMALL_BUCKETS = ZeroSettings(reduce_bucket_size=10_000_000, allgather_bucket_size=10_000_000)

MODELS: dict[str, ModelFiles] = {
    "llama-3.2-1b": shortened("llama-3.2-1b", num_hidden_layers=3),
    "gpt2": shortened("gpt2", n_layer=3),
    "mixtral-8x7b": shortened("mixtral-8x7b", num_hidden_layers=2),
    "qwen2-vl-2b": shortened("qwen2-vl-2b", num_hidden_layers=3),
    "llava-1.5-7b": shortened("llava-1.5-7b"),
}
VISION_MODELS = ("qwen2-vl-2b", "llava-1.5-7b")

LEAST_8BIT_ELEMENTS = 4096
"""bitsandbytes keeps float32 states of anything smaller (``min_8bit_size``): cutting further then costs bytes."""

LOSSES = [loss for loss in LossKind if loss not in (LossKind.UNSLOTH, LossKind.BRADLEY_TERRY)]
"""Of every engine, which Unsloth's is not, and of models that write."""

QUICK = 8
"""Examples in every run of laws that need a new trace for most of them."""

models = st.sampled_from(sorted(MODELS))
sizes = st.lists(st.integers(1, 5_000_000), min_size=1, max_size=30)
recipes = st.fixed_dictionaries(
    {
        "method": st.sampled_from(Method),
        "zero_stage": st.sampled_from([None, 0, 1, 2, 3]),
        "precision": st.sampled_from(Precision),
        "optimizer": st.sampled_from(OptimizerKind),
        "offload_optimizer": st.sampled_from([Offload.NONE, Offload.NONE, Offload.CPU]),
        "offload_params": st.sampled_from([Offload.NONE, Offload.NONE, Offload.CPU]),
        "grad_accum": st.sampled_from([1, 3]),
        "loss": st.sampled_from(LOSSES),
        "expandable_segments": st.booleans(),
        "activation_checkpointing": st.booleans(),
        "vision_activation_checkpointing": st.booleans(),
        "train_vision": st.booleans(),
    }
)


def workload_of(alias: str, **changes: Any) -> Workload:
    images = int(alias in VISION_MODELS)
    return Workload(**{"model": MODELS[alias], "images_per_sample": images, "seq_len": 704, **changes})


@cache
def estimator_of(workload: Workload, recipe: Recipe) -> Estimator:
    return Estimator(workload, recipe)


def estimated(alias: str, recipe: Recipe, *, num_gpus: int = 1, **changes: Any) -> Estimate:
    """The estimate; what the rules refuse is left out of the test."""
    machines = cluster("a100-sxm4-80gb", num_gpus)
    try:
        check(recipe, cluster=machines, model=model_facts(MODELS[alias]))
    except VlmplanError:
        assume(False)
    workload = workload_of(alias, **changes)
    return estimator_of(workload, recipe).estimate(recipe, machines)


def states_bytes(components: Components) -> int:
    return components.weights + components.gradients + components.optimizer_states


@law(models, recipes, st.sampled_from([1, 2, 8]), quick=QUICK)
def test_components_sum_to_the_peak_and_none_is_negative(alias, fields, num_gpus):
    answer = estimated(alias, Recipe(**fields), num_gpus=num_gpus)
    parts = answer.timeline.peak.as_json()
    assert sum(parts.values()) == answer.peak_allocated_bytes
    assert answer.peak_allocated_bytes == max(phase.peak.total for phase in answer.timeline.phases)
    assert answer.peak_allocated_bytes <= answer.device.reserved_bytes <= answer.device.device_bytes
    for phase in answer.timeline.phases:
        assert all(num_bytes >= 0 for part in (phase.resident, phase.peak) for num_bytes in part.as_json().values())


@law(models, recipes, st.integers(1, 256), quick=QUICK)
def test_more_ranks_never_hold_more_model_states(alias, fields, num_ranks):
    recipe = Recipe(**{**fields, "zero_stage": fields["zero_stage"] or 3})
    answer = estimated(alias, recipe)
    table = estimator_of(workload_of(alias), recipe).table
    if recipe.optimizer in (OptimizerKind.ADAMW_8BIT, OptimizerKind.PAGED_ADAMW_8BIT):
        assume(table.num_trained // (2 * num_ranks) >= LEAST_8BIT_ELEMENTS)
    few, many = (
        states_bytes(engine_of(table, recipe, num_ranks=ranks).states().resident)
        for ranks in (num_ranks, 2 * num_ranks)
    )
    padding = 2 * (2 * num_ranks) * table.trained_dtype.num_bytes  # of the flat buffer, to twice the ranks
    assert many <= few + padding
    assert answer.num_params == table.num_params


@law(models, recipes, st.integers(2, 64), st.integers(0, 63), quick=QUICK)
def test_a_higher_zero_stage_never_holds_more_model_states(alias, fields, num_ranks, rank):
    # LLaVA has a last vision layer that nothing uses: stage 1 never sees a gradient of it, the others have room for
    # one.
    assume(alias != "llava-1.5-7b")
    changes = {"offload_optimizer": Offload.NONE, "offload_params": Offload.NONE, "method": Method.FULL}
    precision = Precision.BF16 if fields["precision"] is Precision.BF16_PURE else fields["precision"]
    recipe = Recipe(**{**fields, **changes, "precision": precision, "zero_stage": 0, "zero": NOTHING_KEPT})
    made = estimator_of(workload_of(alias), recipe)
    held: list[int] = []
    for stage in range(4):
        staged = recipe.with_changes(zero_stage=stage)
        trace = made.trace(staged, (8, 0))
        timeline = memory_timeline(made.table, trace, staged, num_ranks=num_ranks, rank=rank % num_ranks)
        held.append(states_bytes(timeline.phases[3].resident))  # weights, states and the gradients of the micro batch
    assert held == sorted(held, reverse=True)


micro_batches = st.fixed_dictionaries(
    {
        "micro_batch": st.integers(1, 2),
        "grad_accum": st.sampled_from([1, 3]),
        "loss": st.sampled_from(LOSSES),
        "activation_checkpointing": st.booleans(),
        "vision_activation_checkpointing": st.booleans(),
    }
)


@law(models, recipes, st.lists(micro_batches, min_size=2, max_size=3), st.sampled_from([1, 2, 3]), quick=QUICK)
def test_a_run_goes_on_with_any_micro_batch_as_a_new_run_does(alias, fields, batches, num_ranks):
    recipe = Recipe(**{**fields, "zero": SMALL_BUCKETS})
    estimated(alias, recipe)
    made = estimator_of(workload_of(alias), recipe)
    num_ranks = num_ranks if recipe.uses_deepspeed else 1
    run = StartedRun(made.table, recipe.without_micro_batch(), num_ranks=num_ranks)
    for changes in batches:
        other = recipe.with_changes(**changes)
        trace = made.trace(other, (8, 0))
        assert run.timeline(trace, other) == memory_timeline(made.table, trace, other, num_ranks=num_ranks)


zero_sizes = st.fixed_dictionaries(
    {
        **{name: st.sampled_from([2_000, 3_000_000]) for name in ("reduce_bucket_size", "allgather_bucket_size")},
        **{
            f"stage3_{name}": st.sampled_from([0, 3_000_000])
            for name in ("prefetch_bucket_size", "param_persistence_threshold", "max_live_parameters")
        },
        **{name: st.booleans() for name in ("overlap_comm", "contiguous_gradients")},
    }
)


@law(models, recipes, zero_sizes, st.sampled_from([1, 2]), quick=QUICK)
def test_a_stage_does_the_same_whatever_the_sizes_that_it_does_not_read(alias, fields, sizes, num_ranks):
    zero = ZeroSettings(**sizes)
    recipe = Recipe(**{**fields, "zero": zero})
    estimated(alias, recipe)
    made = estimator_of(workload_of(alias), recipe)
    trace = made.trace(recipe, (8, 0))
    alike = recipe.with_changes(zero=zero.read_by(recipe.zero_stage))
    num_ranks = num_ranks if recipe.uses_deepspeed else 1
    first, second = (memory_timeline(made.table, trace, one, num_ranks=num_ranks) for one in (recipe, alike))
    assert first == second


@law(models, recipes, st.sampled_from([1, 4]), quick=QUICK)
def test_adapters_need_no_more_than_full_fine_tuning_and_their_own_weights(alias, fields, num_gpus):
    """The weights that stage 3 gathers for a forward have the adapters among them."""
    lora = Recipe(**{**fields, "method": Method.LORA, "zero": SMALL_BUCKETS})
    full = lora.with_changes(method=Method.FULL)
    adapters = estimator_of(workload_of(alias), lora).table.trained_bytes
    assert (
        estimated(alias, lora, num_gpus=num_gpus).peak_allocated_bytes
        <= estimated(alias, full, num_gpus=num_gpus).peak_allocated_bytes + adapters
    )


@law(models, recipes, st.integers(1, 6), st.integers(1, 4), quick=QUICK)
def test_bytes_grow_with_the_micro_batch(alias, fields, micro_batch, more):
    recipe = Recipe(**{**fields, "micro_batch": micro_batch})
    larger = recipe.with_changes(micro_batch=micro_batch + more)
    assert estimated(alias, recipe).peak_allocated_bytes <= estimated(alias, larger).peak_allocated_bytes
    forward, larger_forward = (estimated(alias, each).timeline.phases[2].peak.total for each in (recipe, larger))
    assert forward < larger_forward


@law(models, recipes, st.integers(640, 1000), st.integers(1, 1000), quick=QUICK)
def test_bytes_grow_with_the_length(alias, fields, seq_len, more):
    recipe = Recipe(**fields)
    if alias == "gpt2":
        assume(seq_len + more <= 1024)
    short, long = (estimated(alias, recipe, seq_len=length) for length in (seq_len, seq_len + more))
    assert short.peak_allocated_bytes <= long.peak_allocated_bytes


@law(models, recipes, st.integers(1, 128), st.integers(1, 128), quick=QUICK)
def test_bytes_grow_with_the_rank(alias, fields, rank, more):
    # ZeRO-3 shards a weight, and takes it to the host, from so many elements on: a small adapter stays whole beside it.
    sharded = ZeroSettings(stage3_param_persistence_threshold=0)
    recipe = Recipe(**{**fields, "method": Method.LORA, "lora_rank": rank, "zero": sharded})
    assume(not recipe.optimizer.is_paged)  # whose states of a weight go to the host from so many elements on
    larger = recipe.with_changes(lora_rank=rank + more)
    low, high = estimated(alias, recipe), estimated(alias, larger)
    assert low.num_trainable_params < high.num_trainable_params
    assert low.peak_allocated_bytes <= high.peak_allocated_bytes


@law(recipes, st.integers(2, 20), st.integers(1, 10), quick=QUICK)
def test_bytes_grow_with_the_image(fields, side, more):
    recipe = Recipe(**{**fields, "loss": LossKind.CHUNKED})
    alias = "qwen2-vl-2b"
    small, large = (
        estimated(alias, recipe, seq_len=1200, image_width=28 * pixels, image_height=28 * pixels)
        for pixels in (side, side + more)
    )
    assert small.peak_allocated_bytes <= large.peak_allocated_bytes
    assert small.flops_per_step < large.flops_per_step


@given(sizes, st.integers(1, 300))
def test_the_slices_of_all_ranks_cover_every_parameter_once(numels, num_ranks):
    total = sum(numels)
    covered = 0
    for rank in range(num_ranks):
        partition = partition_of(total, num_ranks, rank)
        assert partition.start == covered
        covered = partition.end
    assert total <= covered < total + 2 * num_ranks
    # Stage 3 cuts every parameter by itself, and pads each.
    assert total <= num_ranks * sharded_elements(numels, num_ranks) < total + num_ranks * len(numels)
