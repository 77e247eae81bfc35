"""Bucket, prefetch, live and reuse sizes: such as DeepSpeed takes, large for the links, small where memory is short."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planned import cluster, shortened, workload
from recipe_cases import card
from small_models import table_of
from vlmplan.communication import COLLECTIVE_LATENCY_SECONDS, link_bytes_per_second
from vlmplan.estimation import Estimator, estimate_with_sizes
from vlmplan.hardware import Cluster, Node
from vlmplan.memory.device import Verdict
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Method, Offload
from vlmplan.recipe.zero import ZeroSettings
from vlmplan.sizes import LATENCY_FRACTION, MAX_BUCKET_ELEMENTS, MIN_BUCKET_ELEMENTS, ModelSizes, even, zero_settings
from vlmplan.workload import Workload

LAYER, WIDTH = 2 * 3 * 5 * 7 * 11 * 13, 2 * 3 * 5 * 7
MODEL = ModelSizes(largest_layer=LAYER, hidden_size=WIDTH)
LARGE = table_of([10**9, 10**6, 3])


def sizes(stage: int = 3, *, low_memory: bool = False, on: Cluster | None = None, numels=None) -> ZeroSettings:
    table = LARGE if numels is None else table_of(numels)
    return zero_settings(MODEL, table, Recipe(zero_stage=stage), on or cluster(num_gpus=4), low_memory=low_memory)


CLUSTERS = st.builds(
    lambda rate, num_gpus, num_nodes: Cluster(
        node=Node(
            gpu=card(has_nvlink=rate is not None, nvlink_bytes_per_second=rate, form_factor="SXM4"), num_gpus=num_gpus
        ),
        num_nodes=num_nodes,
    ),
    st.one_of(st.none(), st.floats(1e8, 2e12)),
    st.integers(1, 16),
    st.integers(1, 4),
)


@given(
    on=CLUSTERS,
    stage=st.integers(0, 3),
    low_memory=st.booleans(),
    numels=st.lists(st.integers(1, 10**9), min_size=1, max_size=4),
)
def test_sizes_are_even_positive_and_never_larger_than_what_there_is_to_reduce(on, stage, low_memory, numels):
    found = sizes(stage, low_memory=low_memory, on=on, numels=numels)
    assert found.reduce_bucket_size == found.allgather_bucket_size
    assert found.reduce_bucket_size % 2 == 0
    assert 2 <= found.reduce_bucket_size <= max(2, sum(numels) + 1, MIN_BUCKET_ELEMENTS)
    assert found.reduce_bucket_size <= MAX_BUCKET_ELEMENTS


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_takes_the_sizes(stage: int, low_memory: bool):
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    found = sizes(stage, low_memory=low_memory)
    read = config.DeepSpeedZeroConfig(
        stage=stage,
        reduce_bucket_size=found.reduce_bucket_size,
        allgather_bucket_size=found.allgather_bucket_size,
        overlap_comm=found.overlap_comm,
        stage3_prefetch_bucket_size=found.stage3_prefetch_bucket_size,
        stage3_param_persistence_threshold=found.stage3_param_persistence_threshold,
        stage3_max_live_parameters=found.stage3_max_live_parameters,
        stage3_max_reuse_distance=found.stage3_max_reuse_distance,
        sub_group_size=found.sub_group_size,
    )
    assert read.reduce_bucket_size == found.reduce_bucket_size
    assert read.prefetch_bucket_size == found.stage3_prefetch_bucket_size
    assert read.max_live_parameters == found.stage3_max_live_parameters
    assert read.max_reuse_distance == found.stage3_max_reuse_distance


def test_bucket_takes_as_long_to_send_that_latency_is_a_small_part():
    on = cluster("h100-sxm", 8)
    bucket_bytes = 2 * sizes(2, on=on).reduce_bucket_size
    seconds = bucket_bytes / link_bytes_per_second(on)
    assert seconds * LATENCY_FRACTION == pytest.approx(COLLECTIVE_LATENCY_SECONDS, rel=1e-3)


@given(st.floats(1e8, 2e12), st.floats(1e8, 2e12))
def test_faster_links_never_get_smaller_buckets(one: float, other: float):
    buckets = [
        sizes(2, on=Cluster(node=Node(gpu=card(**nvlink(rate)), num_gpus=8))).reduce_bucket_size
        for rate in sorted((one, other))
    ]
    assert buckets == sorted(buckets)


def nvlink(rate: float) -> dict[str, object]:
    return {"has_nvlink": True, "nvlink_bytes_per_second": rate, "form_factor": "SXM5"}


def test_stage_3_keeps_two_layers_and_fetches_the_next():
    found = sizes(3)
    assert found.stage3_prefetch_bucket_size == LAYER
    assert found.stage3_max_reuse_distance == 2 * LAYER
    assert found.stage3_max_live_parameters == 3 * LAYER
    assert found.stage3_param_persistence_threshold == 10 * WIDTH


def test_lean_stage_3_keeps_nothing():
    found = sizes(3, low_memory=True)
    assert found.stage3_prefetch_bucket_size == found.stage3_max_reuse_distance == found.stage3_max_live_parameters == 0
    assert found.reduce_bucket_size == MIN_BUCKET_ELEMENTS


@pytest.mark.parametrize(
    ("stage", "num_gpus", "low_memory", "overlaps"),
    [
        (1, 2, False, True),
        (2, 2, False, True),
        (3, 2, False, True),
        (0, 2, False, False),
        (2, 1, False, False),
        (2, 2, True, False),
        (1, 2, True, True),
    ],
)
def test_collectives_overlap_where_there_are_any_and_memory_for_a_second_bucket(stage, num_gpus, low_memory, overlaps):
    assert sizes(stage, low_memory=low_memory, on=cluster(num_gpus=num_gpus)).overlap_comm is overlaps


@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("num_gpus", [1, 2, 8])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", [Offload.NONE, Offload.CPU])
@pytest.mark.parametrize("grad_accum", [1, 2])
def test_lean_sizes_never_need_more_memory_than_fast_ones(method, num_gpus, stage, offload, grad_accum):
    """But for their bucket itself, where a gradient does not fit into it and stays beside it while it is reduced; and
    under stage 1 for where one bucket ends and the next begins, which decides what is copied to be sent."""
    files = shortened("tinyllama-1.1b", num_hidden_layers=4)
    on = cluster(num_gpus=num_gpus)
    recipe = Recipe(method=method, zero_stage=stage, offload_optimizer=offload, grad_accum=grad_accum)
    estimator = Estimator(Workload(model=files, seq_len=128), recipe)
    table = estimator.table
    fast, lean = (
        zero_settings(estimator.sizes, table, recipe, on, low_memory=low_memory) for low_memory in (False, True)
    )
    needed, least = (estimator.timeline(recipe.with_changes(zero=zero), on).peak.total for zero in (fast, lean))
    is_beside = table.largest_trained > lean.reduce_bucket_size
    allowed = lean.reduce_bucket_size * table.trained_dtype.num_bytes if is_beside else 0
    assert least <= needed * (1.02 if stage == 1 else 1) + allowed


def test_under_stage_1_a_bucket_holds_what_would_stay_to_the_end_of_backward_beside_it():
    """A bucket of 10 million elements holds no matrix of this MLP, of 4 layers with three of 2048 x 5632 each; one of
    2048 x 5632 holds all but embedding and head, one of 32000 x 2048 these too: 2 x 65.5 against 2 x 11.5 + 2 x 65.5
    million, with what stays."""
    files = shortened("tinyllama-1.1b", num_hidden_layers=4)
    recipe = Recipe(method=Method.FULL, zero_stage=1)
    estimator = Estimator(Workload(model=files, seq_len=128), recipe)
    for num_gpus, expected in ((1, 10_000_000), (8, 32_000 * 2048)):
        on = cluster(num_gpus=num_gpus)
        found = zero_settings(estimator.sizes, estimator.table, recipe, on, low_memory=True)
        assert found.reduce_bucket_size == expected
    stage_2 = zero_settings(
        estimator.sizes, estimator.table, recipe.with_changes(zero_stage=2), cluster(num_gpus=8), low_memory=True
    )
    assert stage_2.reduce_bucket_size == 10_000_000  # which drops such gradients at once


@given(st.integers(1, 10**12))
def test_even_rounds_up_to_the_next_even_number(count: int):
    assert even(count) % 2 == 0
    assert count <= even(count) <= count + 1


def test_estimate_takes_fast_sizes_where_they_fit_and_lean_ones_where_they_must():
    recipe = Recipe(zero_stage=3)
    ample = estimate_with_sizes(workload("qwen2-vl-2b"), recipe, cluster("a100-sxm4-80gb", 8))
    assert ample.verdict is Verdict.FITS
    assert ample.recipe.zero.stage3_prefetch_bucket_size > 0
    scarce = estimate_with_sizes(workload("qwen2-vl-2b"), recipe, cluster("t4", 2))
    assert scarce.recipe.zero.stage3_prefetch_bucket_size == 0


def test_plain_pytorch_needs_no_sizes():
    recipe = Recipe()
    assert estimate_with_sizes(workload("smollm2-135m"), recipe, cluster()).recipe == recipe
